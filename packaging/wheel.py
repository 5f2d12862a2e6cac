"""Writes a wheel that contains the program: wheel.py STAGE VERSION ARCH OUT.

A wheel is a zip archive with three files about itself
(https://packaging.python.org/en/latest/specifications/binary-distribution-format/). pip copies what is
in `*.data/scripts` into the folder of commands. The program is static, so it runs with every libc: the
tags are the oldest that pip knows for each.
"""

import base64
import hashlib
import os
import sys
import time
import zipfile

stage, version, arch, out = sys.argv[1:]
tags = f"py3-none-manylinux_2_17_{arch}.manylinux2014_{arch}.musllinux_1_1_{arch}"
info = f"tidings-{version}.dist-info"


def read(path):
    with open(path, "rb") as file:
        return file.read()


metadata = f"""Metadata-Version: 2.4
Name: tidings
Version: {version}
Summary: A durable notification broker with polite web crawlers
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
License-File: copyright
Requires-Python: >=3.8
Classifier: Operating System :: POSIX :: Linux
Description-Content-Type: text/markdown

The command `tidings`: a broker, a work queue and a crawler in one program. It does not use Python.
"""
wheel = "Wheel-Version: 1.0\nGenerator: tidings\nRoot-Is-Purelib: false\n"
# The tag of each combination, as the name of the file joins them.
wheel += "".join(f"Tag: py3-none-{platform}\n" for platform in tags.removeprefix("py3-none-").split("."))
files = {
    f"tidings-{version}.data/scripts/tidings": read(f"{stage}/tidings"),
    f"{info}/licenses/LICENSE-APACHE": read("LICENSE-APACHE"),
    f"{info}/licenses/LICENSE-MIT": read("LICENSE-MIT"),
    f"{info}/licenses/copyright": read(f"{stage}/copyright"),
    f"{info}/METADATA": metadata.encode(),
    f"{info}/WHEEL": wheel.encode(),
}


def record(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


files[f"{info}/RECORD"] = ("".join(record(*item) for item in files.items()) + f"{info}/RECORD,,\n").encode()
date = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
with zipfile.ZipFile(f"{out}/tidings-{version}-{tags}.whl", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    for name, data in files.items():
        entry = zipfile.ZipInfo(name, date)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o100755 if name.endswith("scripts/tidings") else 0o100644) << 16
        archive.writestr(entry, data)
