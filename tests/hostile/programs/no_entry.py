# why: the function under another name
def solution(x):
    return 3 * x * x + 7
