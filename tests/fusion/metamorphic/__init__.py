"""Random edits of graphs that fuse: what keeps the meaning keeps the sites, what breaks it is never fused wrongly."""
