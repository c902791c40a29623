// The ranked translations of the selected sentence.

import { $, element, moveByArrows, quoted } from "./dom.js";
import { choose, keyOf, on, state, translationOf } from "./state.js";
import { percent } from "./words.js";

function drawAlternatives() {
  const sentence = state.selected, translations = sentence?.translations ?? [];
  $("alternatives").hidden = translations.length < 2;
  $("alternatives-title").replaceChildren(...(sentence ? ["Translations of ", ...quoted(keyOf(sentence).trim())] : []));
  $("ranked").replaceChildren(...translations.map(translation => {
    const { text, score } = translation;
    const button = element("button", { type: "button" },
      element("span", { textContent: text, dir: "auto", lang: $("target").value }),
      // The score is a log-probability, made comparable among lengths.
      element("data", { value: score, textContent: percent(Math.exp(score)), title: "How likely the model finds it" }));
    button.setAttribute("aria-pressed", translationOf(sentence) === translation);
    button.addEventListener("click", () => {
      const place = translations.indexOf(translation);
      choose(sentence, translation);
      $("ranked").children[place].firstChild.focus();
    });
    return element("li", {}, button);
  }));
}

for (const name of ["drawn", "selected"]) on(name, drawAlternatives);
moveByArrows($("ranked"));
