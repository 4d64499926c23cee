# why: an object that runs code where it is unpickled
# label: not_json
import os
class Payload:
    def __reduce__(self):
        return (os._exit, (0,))
def f(x):
    return Payload()
