"""Training drafters on a trunk's own answers. Needs torch, nothing else beside the package's own dependencies."""
