# why: prose instead of a program
# label: syntax_error
The function squares its argument. I am confident that it passes every test.
