"""From an export whose caches grow to a decoder that writes its caches in place.

Attention over ``[past; new]`` becomes attention over a cache of pages up to the length of each sequence; what depended
on the growing length is proven to be the causal mask and the padding, and goes. See docs/caches.md.
"""
