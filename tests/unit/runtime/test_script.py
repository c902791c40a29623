"""Values that Hydra cannot read get one line."""

from __future__ import annotations

from translator.runtime.script import hydra_as_user_errors

import pytest

from tests.support.configurations import run_config
from translator.runtime.errors import UserError


@pytest.mark.parametrize("corpora", ["[{name:é,train:x.tsv}]", "[{name:a,train:x.tsv}", "[{name:a,train:x&y.tsv}]"])
def test_text_out_of_quotes_is_named(corpora):
    with pytest.raises(UserError, match=r"^data\.corpora=\[.*: cannot be read\. .* in quotes"), hydra_as_user_errors():
        run_config("data=mix", f"data.corpora={corpora}")
