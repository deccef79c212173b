"""Values read by elements: each as a term of elements of the values in front."""
