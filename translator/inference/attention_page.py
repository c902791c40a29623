"""A page to look into attention: one HTML file that shows the weights of the piece under the pointer."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor

from translator.inference.attention_views import View
from translator.model.attention_maps import dead_heads, relative_entropy


def attention_page(texts: Mapping[str, str], views: Sequence[View]) -> bytes:
    """Return the page as HTML in UTF-8. It needs nothing from outside: a weight is a byte in it."""
    templates = Environment(loader=PackageLoader("translator.inference", "."), autoescape=True, undefined=StrictUndefined)
    page = templates.get_template("attention.html.jinja").render(texts=texts, views=[_plain(view) for view in views])
    return page.encode()


def _plain(view: View) -> dict[str, Any]:
    """Return a view as JSON takes it."""
    return dataclasses.asdict(dataclasses.replace(view, weights=[])) | {"layers": [_heads(layer) for layer in view.weights]}


def _heads(weights: Tensor) -> list[dict[str, Any]]:
    """Return each head of (H, T, S): its weights in 255ths, row by row, in base64, its entropy, and whether it is dead."""
    levels, dead = (255 * weights.float().cpu().clamp(0, 1)).round().byte().numpy(), dead_heads(weights)
    return [
        {"weights": base64.b64encode(levels[head].tobytes()).decode(), "entropy": round(entropy, 2), "dead": head in dead}
        for head, entropy in enumerate(relative_entropy(weights).tolist())]
