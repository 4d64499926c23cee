# why: the exit builtin at import
# label: exit_call
exit()
