"""Codes of ISO 639-1 and 639-3, with scripts and territories, of the same language are found to be so."""

from __future__ import annotations

import pytest

from translator.text.language_codes import closeness, spellings


@pytest.mark.parametrize(("wanted", "nearest", "others"), [
    ("de", "deu_Latn", ["nld_Latn"]), ("deu", "de_DE", ["da_DK"]), ("fr", "fr_FR", ["fr_CA"]), ("pt_PT", "pt_PT", ["pt_BR"]),
    ("zh", "cmn_Hans", ["cmn_Hant", "yue_Hant"]), ("zh-TW", "zh_TW", ["zh_CN"]), ("ca", "cat_Latn", ["cat_Latn_vale1252"]),
    ("fa", "pes_Arab", ["prs_Arab"]), ("no", "nob_Latn", ["nno_Latn"]),
    ("ar", "arb_Arab", ["arb_Latn", "ary_Arab"]), ("lv", "lvs_Latn", ["ltg_Latn"]), ("es", "es_MX", ["pt_BR"])])
def test_the_code_of_the_same_language_is_closest(wanted, nearest, others):
    rank = closeness(wanted, nearest)
    assert rank is not None
    assert all((closeness(wanted, other) or 0) < rank for other in others)


def test_another_script_is_no_match():
    assert closeness("sr_Latn", "srp_Cyrl") is closeness("sr_Latn", "sr") is None  # Cyrillic is its likeliest


def test_a_language_has_codes_of_two_standards():
    assert {"de", "deu"} <= set(spellings("de_AT"))
    assert {"zh", "zho", "cmn"} <= set(spellings("zh-Hant"))
    assert spellings("answer") == ["answer"]
