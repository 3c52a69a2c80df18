"use strict";
// Draws the charts of report.html from the JSON in it, again when its width changes. Plot's SVG takes the page's colours.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const number = d3.format(",.0f");
  const style = { fontSize: "12px", fontFamily: "inherit" };
  const clock = (date) => date.getUTCMilliseconds() ? "" : d3.utcFormat(date.getUTCSeconds() ? "%H:%M:%S" : date.getUTCHours() || date.getUTCMinutes() ? "%H:%M" : "%b %d")(date);
  const time = d3.utcFormat("%Y-%m-%d %H:%M:%S");
  const bytes = (value) => (value >= 1e9 ? `${(value / 1e9).toFixed(1)} GB` : value >= 1e6 ? `${(value / 1e6).toFixed(1)} MB` : `${number(value / 1e3)} kB`);
  // By class, the same colour in every chart: what is fine is blue and green, what is cut is orange, what is broken is red.
  const classes = ["complete", "tool_call", "cut_in_answer", "cut_in_thinking", "repetition", "empty", "aborted", "failed"];
  const hues = ["#4269d0", "#3ca951", "#efb118", "#ff725c", "#a463f2", "#9c6b4e", "#6cc5b0", "#97323a"];
  const byClass = (rows) => {
    const domain = classes.filter((name) => rows.some((row) => row.class === name));
    return { domain, range: domain.map((name) => hues[classes.indexOf(name)]), legend: true };
  };
  const chosen = document.getElementById("source");
  const ofSource = (rows) => rows.filter((row) => !chosen.value || row.source === chosen.value);
  const when = (row) => new Date(row.t);
  const span = { x1: (row) => new Date(row.from), x2: (row) => new Date(row.to), shapeRendering: "crispEdges" };
  const since = (row) => time(new Date(row.from));
  const whole = (value) => (Number.isInteger(value) ? d3.format("~s")(value) : ""); // there is no half an answer
  // Names as the width has room for them: the beginning and the end, which tell them apart; and the margin that they take.
  const short = (width) => (text) => {
    const [name, most] = [text.replace(/^https?:\/\//, ""), width < 500 ? 15 : 27];
    return name.length > most ? `${name.slice(0, (most - 1) / 2)}…${name.slice((1 - most) / 2)}` : name;
  };
  const margins = (names, width) => 24 + 7.5 * d3.max(names, (name) => short(width)(name).length);
  const MOST_HUES = 8;

  // Turns of all chosen sources, by bin and class: [{from, to, class, count}].
  const bins = (rows, kinds) => d3.flatRollup(ofSource(rows), (of) => ({ count: d3.sum(of, (row) => row.count), to: of[0].to }), (row) => row.from, kinds)
    .map(([from, kind, of]) => ({ from: Math.max(from, 0.7), to: Math.max(of.to, 1), class: kind, count: of.count }));
  const histogram = (rows, color, width, label) => Plot.plot({
    width, style, height: 280, marginLeft: 60, marginBottom: 44, color, x: { type: "log", base: 2, label, tickFormat: number, ticks: width < 500 ? 5 : 10 },
    y: { label: "turns", grid: true, tickFormat: whole },
    marks: [
      Plot.rectY(rows, Plot.stackY({ x1: "from", x2: "to", y: "count", z: "class", fill: color ? "class" : "#4269d0", insetLeft: 0.5, insetRight: 0.5, order: color ? color.domain : null, title: (row) => `${number(row.from)} to ${number(row.to)} tokens\n${row.class ? `${row.class}: ` : ""}${number(row.count)} turns`, tip: true })),
      Plot.ruleY([0]),
    ],
  });
  const quantile = (of, share) => {
    const sorted = d3.sort(of, (row) => row.from);
    let left = share * d3.sum(sorted, (row) => row.count);
    for (const row of sorted) if ((left -= row.count) <= 0) return Math.min(data.most, (row.from + row.to - 1) / 2);
    return 0;
  };

  const draw = {
    pace: (width) => data.pace.some((row) => row.rate) && Plot.plot({
      width, style, height: 260, marginLeft: 60, color: { legend: true, tickFormat: short(width) }, x: { type: "utc", label: null, tickFormat: clock }, y: { label: "tokens/s", grid: true, tickFormat: "~s" },
      marks: [
        Plot.rectY(data.pace, Plot.stackY({ ...span, y: "rate", z: "server", fill: "server", order: "server", title: (row) => `${row.server}\n${since(row)}\n${number(row.rate)} tokens/s`, tip: true })),
        Plot.ruleY([0]),
      ],
    }),
    seats: (width) => {
      if (!data.pace.length) return null;
      const granted = d3.rollups(data.pace, (of) => d3.sum(of, (row) => row.seats), (row) => row.from).map(([from, seats]) => ({ from, to: data.pace.find((row) => row.from === from).to, seats }));
      return Plot.plot({
        width, style, height: 220, marginLeft: 60, color: { legend: true, tickFormat: short(width) }, x: { type: "utc", label: null, tickFormat: clock }, y: { label: "requests", grid: true, tickFormat: whole },
        marks: [
          Plot.rectY(data.pace, Plot.stackY({ ...span, y: "in_flight", z: "server", fill: "server", order: "server", title: (row) => `${row.server}\n${since(row)}\n${row.in_flight} in flight of ${row.seats} seats`, tip: true })),
          Plot.ruleY(granted, { ...span, y: "seats", stroke: "currentColor", strokeWidth: 1.5 }),
          Plot.ruleY([0]),
        ],
      });
    },
    servers: (width) => {
      const spans = [...data.stages.map((row) => ({ ...row, name: row.stage, kind: "stage" })), ...data.lives.map((row) => ({ ...row, name: row.server, kind: "server" }))];
      if (!spans.length) return null;
      const names = [...new Set(spans.map((row) => row.name))];
      return Plot.plot({
        width, style, height: 44 + 26 * names.length, marginLeft: margins(names, width), x: { type: "utc", label: null, tickFormat: clock, grid: true }, y: { label: null, domain: names, tickFormat: short(width) },
        color: { domain: ["stage", "server"], range: ["#8a94a0", "#4269d0"] },
        marks: [
          Plot.barX(spans, { x1: (row) => new Date(row.from), x2: (row) => new Date(Math.max(row.to, row.from + 1)), y: "name", fill: "kind", insetTop: 4, insetBottom: 4, rx: 2, title: (row) => `${row.name}${row.start ? `, start ${row.start}` : ""}\n${time(new Date(row.from))}\nto ${time(new Date(row.to))}`, tip: true }),
          Plot.dot(data.deaths, { x: (row) => new Date(row.at), y: "server", symbol: "times", stroke: "#e4572e", strokeWidth: 2.5, r: 6, title: (row) => `${row.server} died, ${time(new Date(row.at))}\n${row.reason}`, tip: { lineWidth: 30 } }),
        ],
      });
    },
    upload: (width) => data.upload.length && Plot.plot({
      width, style, height: 220, marginLeft: 64, color: { legend: true, domain: ["finished", "stored"], range: ["#8a94a0", "#4269d0"] }, x: { type: "utc", label: null, tickFormat: clock }, y: { label: null, grid: true, tickFormat: bytes, ticks: 5, zero: true },
      marks: [Plot.lineY(data.upload, { x: when, y: "bytes", z: "what", stroke: "what", curve: "step-after", strokeWidth: 2, marker: data.upload.length < 12 ? "circle" : null, title: (row) => `${row.what}\n${time(when(row))}\n${bytes(row.bytes)}`, tip: true }), Plot.ruleY([0])],
    }),
    output_lengths: (width) => {
      const rows = bins(data.output_lengths, (row) => row.class);
      return rows.length && histogram(rows, byClass(rows), width, "output tokens");
    },
    prompt_lengths: (width) => {
      const rows = bins(data.prompt_lengths, () => "");
      return rows.length && histogram(rows, null, width, "prompt tokens");
    },
    by_source: (width) => {
      const rows = d3.groups(data.output_lengths, (row) => row.source).map(([source, of]) => ({ source, low: quantile(of, 0.25), middle: quantile(of, 0.5), high: quantile(of, 0.75), most: quantile(of, 0.9) }));
      return rows.some((row) => row.most) && Plot.plot({
        width, style, height: 64 + 26 * rows.length, marginBottom: 44, marginLeft: margins(rows.map((row) => row.source), width), x: { label: "output tokens", grid: true, tickFormat: "~s", zero: true }, y: { label: null, tickFormat: short(width) },
        marks: [
          Plot.ruleY(rows, { y: "source", x1: "low", x2: "most", stroke: "#8a94a0" }),
          Plot.barX(rows, { y: "source", x1: "low", x2: "high", fill: "#4269d0", insetTop: 5, insetBottom: 5, rx: 2, sort: { y: "-x2" }, title: (row) => `${row.source}\na quarter below ${number(row.low)}\nmedian ${number(row.middle)}\nthree quarters below ${number(row.high)}\nnine tenths below ${number(row.most)}`, tip: true }),
          Plot.dot(rows, { y: "source", x: "middle", r: 4, fill: "var(--surface)", stroke: "#4269d0", strokeWidth: 2 }),
          Plot.tickX(rows, { y: "source", x: "most", stroke: "#8a94a0", insetTop: 8, insetBottom: 8 }),
        ],
      });
    },
    shares: (width) => data.shares.length && Plot.plot({
      width, style, height: 240, marginLeft: 60, color: byClass(data.shares), x: { type: "utc", label: null, tickFormat: clock }, y: { label: "% of turns", percent: true, grid: true, domain: [0, 100] },
      marks: [Plot.rectY(data.shares, Plot.stackY({ ...span, y: "share", z: "class", fill: "class", order: classes, title: (row) => `${row.class}\n${since(row)}\n${(100 * row.share).toFixed(1)} %`, tip: true })), Plot.ruleY([0])],
    }),
    failures: (width) => {
      const sources = d3.groupSort(data.failures, (of) => -d3.sum(of, (row) => row.count), (row) => row.source);
      const named = sources.length > MOST_HUES + 1 ? sources.slice(0, MOST_HUES) : sources;
      const rows = data.failures.map((row) => ({ ...row, hue: named.includes(row.source) ? row.source : "other sources" }));
      const kinds = [...new Set(rows.map((row) => row.class))];
      const domain = named === sources ? named : [...named, "other sources"];
      return kinds.length && Plot.plot({
        width, style, height: 64 + 28 * kinds.length, marginBottom: 44, marginLeft: margins(kinds, width), color: { legend: true, domain, tickFormat: short(width) }, x: { label: "answers", grid: true, tickFormat: whole, ticks: width < 500 ? 4 : 10 }, y: { label: null, tickFormat: short(width) },
        marks: [Plot.barX(rows, Plot.stackX({ y: "class", x: "count", z: "hue", fill: "hue", order: domain, sort: { y: "-x" }, insetTop: 3, insetBottom: 3, title: (row) => `${row.class}\n${row.source}: ${number(row.count)}`, tip: true })), Plot.ruleX([0])],
      });
    },
    mix: (width) => {
      const rows = data.mix.flatMap((row) => [{ source: row.source, what: "answered", count: row.completions }, { source: row.source, what: "failed", count: row.failures }]);
      return rows.some((row) => row.count) && Plot.plot({
        width, style, height: 64 + 28 * data.mix.length, marginBottom: 44, marginLeft: margins(data.mix.map((row) => row.source), width), color: { legend: true, domain: ["answered", "failed"], range: ["#4269d0", "#ff725c"] }, x: { label: "answers", grid: true, tickFormat: whole, ticks: width < 500 ? 4 : 10 }, y: { label: null, domain: data.mix.map((row) => row.source), tickFormat: short(width) },
        marks: [
          Plot.barX(rows, Plot.stackX({ y: "source", x: "count", z: "what", fill: "what", insetTop: 4, insetBottom: 4, order: ["answered", "failed"], title: (row) => `${row.source}\n${number(row.count)} ${row.what}`, tip: true })),
          Plot.tickX(data.mix.filter((row) => row.asked !== null), { y: "source", x: "asked", stroke: "currentColor", strokeWidth: 2 }),
          Plot.ruleX([0]),
        ],
      });
    },
  };

  const paint = (place) => {
    const width = Math.max(280, Math.floor(place.clientWidth));
    place.dataset.width = String(width);
    const chart = draw[place.dataset.chart](width);
    const nothing = Object.assign(document.createElement("p"), { className: "none", textContent: place.dataset.none });
    place.replaceChildren(chart || nothing);
  };
  const places = [...document.querySelectorAll("[data-chart]")];
  places.forEach(paint);
  chosen.addEventListener("change", () => places.filter((place) => place.dataset.chart.endsWith("_lengths")).forEach(paint));
  addEventListener("resize", () => places.filter((place) => Math.abs(place.clientWidth - Number(place.dataset.width)) > 8).forEach(paint));
})();
