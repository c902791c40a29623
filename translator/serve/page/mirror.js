// The mirror under the text, letter on letter, with an element for each token: it marks what a word comes from.

import { $, element } from "./dom.js";
import { state } from "./state.js";

const mirror = $("mirror");
let marks = []; // of each line and sentence

export function drawMirror() {
  const lines = $("text").value.split("\n");
  mirror.replaceChildren();
  marks = lines.map(line => {
    const ofLine = (state.known.get(line) ?? []).map(sentence => sentence.source.map(drawMark));
    mirror.append(state.known.has(line) ? "\n" : line + "\n");
    return ofLine;
  });
}

function drawMark(span) {
  const word = span.trimStart(), mark = element("span", { textContent: word });
  mirror.append(span.slice(0, span.length - word.length), mark);
  return mark;
}

export function highlight(line, sentence, weights) {
  (marks[line]?.[sentence] ?? []).forEach((mark, place) => mark.style.setProperty("--weight", weights[place]));
}

export function clearHighlight() {
  for (const mark of mirror.children) mark.style.removeProperty("--weight");
}
