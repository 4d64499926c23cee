# why: the prompt, copied back
"""Write a function f(x). Example: f(1) is 10."""
