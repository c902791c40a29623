// The choice of languages.

import { $, element } from "./dom.js";
import { AUTO, emit, forget, state } from "./state.js";
import { wholeText } from "./words.js";

const text = $("text"), output = $("output"), source = $("source"), target = $("target"), swap = $("swap");

function targetsOf(code) {
  if (code !== AUTO) return state.languages.find(language => language.code === code).targets;
  return [...new Set(state.languages.flatMap(language => language.targets))];
}

export const nameOf = code => state.languages.find(language => language.code === code)?.name ?? "Detect language";

// A heading takes the place of a choice of one.
function fill(select, codes, wanted) {
  const heading = $(`${select.id}-name`);
  select.replaceChildren(...codes.map(code => element("option", { value: code, textContent: nameOf(code) })));
  select.value = codes.includes(wanted) ? wanted : codes[0];
  heading.textContent = nameOf(codes[0]);
  select.hidden = codes.length === 1;
  heading.hidden = !select.hidden;
}

export function setPair(from, into) {
  const sources = state.languages.filter(language => language.targets.length).map(language => language.code);
  fill(source, sources.length > 1 ? [AUTO, ...sources] : sources, from);
  fill(target, targetsOf(source.value), into);
  swap.disabled = source.value === AUTO || !targetsOf(target.value).includes(source.value);
  text.lang = source.value === AUTO ? "" : source.value;
  output.lang = target.value;
  forget();
}

export function showDetected(code) {
  state.detected = code;
  source.selectedOptions[0].textContent = `Detected: ${nameOf(code)}`;
}

for (const select of [source, target]) select.addEventListener("change", () => {
  setPair(source.value, target.value);
  emit("changed");
});

swap.addEventListener("click", () => {
  if (state.drawn === text.value) text.value = wholeText(); // what has no translation yet stays
  setPair(target.value, source.value);
  emit("changed");
});
