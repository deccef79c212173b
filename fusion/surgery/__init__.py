"""Changes to a graph beside the replacement of a site: rewriting what fused operators read."""
