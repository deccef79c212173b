"""kvfuse inside other tools. Each module needs its tool, an optional extra of the same name."""
