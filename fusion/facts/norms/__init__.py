"""RMSNorms, and what only looks like one."""
