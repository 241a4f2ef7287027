#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes C++ that calls every op with an undefined tensor for each operand.

usage: list_entry_points.py HEADER...

Reads the functions in headers of ops, and the methods of Tensor if tensor.h is
given. Prints the source of EntryPoints() (entry_points_testutil.h). A
declaration that it cannot parse, or an argument that it cannot make, is an
error, so that the test never silently omits one.
"""

import os
import re
import sys

# Operands that may be undefined, in addition to those that default to Tensor().
OPTIONAL = {
    ("RmsNorm", "weight"),
    ("LayerNorm", "weight"),
    ("LayerNorm", "bias"),
    ("Float8Linear", "w_inverse_scale"),
    ("Float8Linear", "bias"),
}

# Methods that work on an undefined Tensor.
OF_ANY_TENSOR = {"defined", "SameAs", "IsUnique", "IsOnlyHandle", "Describe"}

VALUES = {
    "double": "1.0",
    "int64_t": "1",
    "uint64_t": "1",
    "int": "1",
    "bool": "false",
    "DType": "kFloat32",
    "ShapeView": "Shape{1}",
    "const AddMMOptions&": "AddMMOptions{}",
    "const MatMulSpec&": "MatMulSpec{}",
    "const CrossEntropyOptions&": "CrossEntropyOptions{}",
    "const Conv1dOptions&": "Conv1dOptions{}",
    "const Conv2dOptions&": "Conv2dOptions{}",
    "const RowsCols&": "RowsCols{1, 1}",
    "const WindowOptions&": "WindowOptions{}",
    "const AttentionOptions&": "AttentionOptions{}",
    "const DocumentLengths&": "DocumentLengths{}",
    "Float8Recipe": "Float8Recipe::kTensorwise",
    "const Float8Values&": "Float8Values{Any(), Any()}",
}


def fail(message):
    sys.exit(f"list_entry_points.py: {message}")


def split(text):
    """Splits at commas outside of brackets."""
    parts, depth, part = [], 0, ""
    for c in text:
        depth += c in "({[<"
        depth -= c in ")}]>"
        if c == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += c
    return parts + [part.strip()] if part.strip() else parts


def parameters(function, text):
    """Returns [(type, name, default)]."""
    result = []
    for part in split(text):
        declared, _, default = part.partition("=")
        match = re.fullmatch(r"(.*[\s&*])(\w+)", declared.strip())
        if match is None:
            fail(f"{function}: cannot read the parameter '{part}'")
        kind = re.sub(r"\s+", " ", match[1].strip())
        result.append((kind, match[2], default.strip()))
    return result


def declarations(text):
    """Returns [(returned type, name, parameters as text)] at the left margin."""
    found = []
    for match in re.finditer(r"^([\w:<>]+) (\w+)\(", text, re.M):
        end, depth = match.end(), 1
        while depth > 0:
            depth += text[end] in "("
            depth -= text[end] in ")"
            end += 1
        if text[end] == ";":
            found.append((match[1], match[2], text[match.end():end - 1]))
    return found


def value(function, kind):
    if kind in ("const Tensor&", "Tensor"):
        return "Any()"
    if kind == "TensorSpan":
        return "TensorList{Any(), Any()}"
    if kind not in VALUES:
        fail(f"{function}: no value for a '{kind}'; add one")
    return VALUES[kind]


def calls_of(function, declared):
    given = ["Tensor()" if (function, name) in OPTIONAL else value(function, kind)
             for kind, name, _ in declared]
    for i, (kind, name, default) in enumerate(declared):
        if default == "Tensor()" or (function, name) in OPTIONAL:
            continue
        if kind == "const Tensor&":
            forms = ["Tensor()"]
        elif kind == "const Float8Values&":
            forms = ["Float8Values{Tensor(), Any()}", "Float8Values{Any(), Tensor()}"]
        elif kind == "TensorSpan":
            forms = ["TensorList{Tensor()}", "TensorList{Any(), Tensor()}"]
        else:
            continue
        for form in forms:
            yield f"{function}({', '.join(given[:i] + [form] + given[i + 1:])})"


def methods_of(text):
    body = text[text.index("class Tensor {"):]
    body = body[:body.index(" private:")]
    pattern = (r"^  (template <typename T>\n  )?"
               r"(\w[\w:<>&*\s]*?[\s&*])(\w+)\(([^()]*)\)\s*(const)?\s*[;{]")
    for match in re.finditer(pattern, body, re.M):
        name = match[3]
        if name == "Tensor" or name in OF_ANY_TENSOR:
            continue
        given = [value(name, kind) for kind, _, _ in parameters(name, match[4])]
        typed = "<float>" if match[1] else ""
        yield f"Tensor().{name}{typed}({', '.join(given)})"


def check_complete(paths):
    """Checks that all that ops.h includes is given."""
    given = {os.path.basename(path) for path in paths}
    for path in paths:
        if os.path.basename(path) != "ops.h":
            continue
        with open(path, encoding="utf-8") as header:
            included = re.findall(r'include ".*/(\w+\.h)"', header.read())
        left_out = sorted(set(included) - given)
        if left_out:
            fail(f"ops.h includes {', '.join(left_out)}, which is not listed")
        return
    fail("ops.h is not listed")


def main():
    calls = []
    check_complete(sys.argv[1:])
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as header:
            text = re.sub(r"//[^\n]*", "", header.read())
        text = re.sub(r"namespace internal \{.*?\n\}\s*\n", "", text, flags=re.S)
        if os.path.basename(path) == "tensor.h":
            calls += methods_of(text)
            continue
        for _, function, declared in declarations(text):
            calls += calls_of(function, parameters(function, declared))
    print('#include "crosshatch/tensor/creation.h"')
    print('#include "crosshatch/tensor/ops/entry_points_testutil.h"')
    print('#include "crosshatch/tensor/ops/ops.h"\n')
    print("namespace crosshatch {")
    print("namespace {\nTensor Any() { return Ones({2, 2}); }\n}  // namespace")
    print("std::vector<EntryPoint> EntryPoints() {\n  return {")
    for call in calls:
        print(f'      {{"{call}", [] {{ (void){call}; }}}},')
    print("  };\n}\n}  // namespace crosshatch")


if __name__ == "__main__":
    main()
