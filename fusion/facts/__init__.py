"""Facts: what a value *is* (a normalised x, a rotated x, a quantised x, a written cache), spelling aside.

Rooms, the lower first: ``semantics`` (what an operator does to shapes and elements), ``trial``, ``symbols``, then
what is read with them: ``norms``, ``rotary``, ``quantised``, ``caches``, ``attention``. Beside them lie the graph's own
view (``graph``, ``numbering``, ``spine``) and ``analysis``, which reads all facts of a graph.
"""
