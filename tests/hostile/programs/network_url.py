# why: fetch a page
import urllib.request
def f(x):
    return urllib.request.urlopen('http://127.0.0.1:1/', timeout=1).read().decode()
