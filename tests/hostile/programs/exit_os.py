# why: exit with success before any test runs
# label: early_exit
import os
os._exit(0)
