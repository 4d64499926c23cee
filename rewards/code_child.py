"""What runs inside the sandbox for `rewards.code`: it feeds a program its inputs and passes on what came out.

It shares its process with the program, so the program can make it say anything. That is harmless: it has no expected
values, so all that can be forged is an output, which is compared outside like any other.
"""

import binascii
import builtins
import json
import os
import sys
import types

OUTPUT_BYTES = 64 << 10  # of one test's stdout


def say(**fields):
    line = json.dumps(fields, allow_nan=False) + "\n"
    os.write(3, line.encode("utf-8", "surrogatepass"))


def module(name):
    made = types.ModuleType(name)
    made.__dict__["__builtins__"] = builtins
    sys.modules[name] = made
    return made.__dict__


def load_function(source, entry):
    """The function named `entry`; a program that is one expression of x is the function's body."""
    namespace = module("program")
    if entry == "f":
        try:
            body = compile(source.strip(), "program.py", "eval", dont_inherit=True)
        except (SyntaxError, ValueError):
            pass
        else:
            return lambda x: eval(body, {**namespace, "x": x})
    exec(compile(source, "program.py", "exec", dont_inherit=True), namespace)
    return namespace[entry]


def run_calls(source, entry, inputs):
    function = load_function(source, entry)
    for index, arguments in enumerate(inputs):
        try:
            value = function(*arguments)
        except BaseException as error:
            say(test=index, error=type(error).__name__)
            continue
        try:
            say(test=index, value=value)
        except BaseException as error:
            say(test=index, error=f"not JSON: {type(error).__name__}")


def run_program(code, stdin, stdout):
    """In a fork of its own: the program as `__main__`, between two files."""
    os.dup2(stdin.fileno(), 0)
    os.dup2(stdout.fileno(), 1)
    os.close(3)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    status = 0
    try:
        exec(code, module("__main__"))
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    finally:
        sys.stdout.flush()
        os._exit(status & 255)


def run_scripts(source, inputs):
    code = compile(source, "program.py", "exec", dont_inherit=True)
    for index, text in enumerate(inputs):
        # in the folder that it started in, which is the only one that it may write to under some isolations
        with open(".stdin", "w+b") as stdin, open(".stdout", "w+b") as stdout:
            os.unlink(".stdin")
            os.unlink(".stdout")
            stdin.write(binascii.a2b_base64(text))
            stdin.seek(0)
            pid = os.fork()
            if pid == 0:
                run_program(code, stdin, stdout)
            os.waitpid(pid, 0)
            stdout.seek(0)
            output = stdout.read(OUTPUT_BYTES + 1)
        if len(output) > OUTPUT_BYTES:
            say(test=index, error="too much output")
        else:
            say(test=index, value=binascii.b2a_base64(output, newline=False).decode())


def main():
    order = json.loads(sys.stdin.buffer.read())
    with open(os.devnull) as empty:
        os.dup2(empty.fileno(), 0)
    try:
        if order["kind"] == "call":
            run_calls(order["source"], order["entry"], order["inputs"])
        else:
            run_scripts(order["source"], order["inputs"])
    except BaseException as error:
        say(error="no such function" if isinstance(error, KeyError) else type(error).__name__)
        raise
    say(end=True)


main()
