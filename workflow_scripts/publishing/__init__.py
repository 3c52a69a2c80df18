"""Finished files become verified objects in S3, created once and never overwritten."""
