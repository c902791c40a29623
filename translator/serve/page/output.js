// The translation, word by word.

import { $, element, quoted } from "./dom.js";
import { openChoices } from "./choices.js";
import { clearHighlight, highlight } from "./mirror.js";
import { emit, on, state, translationOf } from "./state.js";
import { announce, showStatus } from "./status.js";
import { PUNCTUATION, between, inWords, isSpelled, originOf, percent, probabilityOf, spell, weightsOf } from "./words.js";

const UNSURE = 0.5; // the probability of a word below which it is tinted, the more the lower
const output = $("output"), text = $("text");

export function draw() {
  state.shown = text.value.split("\n").map(line => state.known.get(line) ?? []);
  state.drawn = text.value;
  const sentences = state.shown.flat();
  output.replaceChildren(...(text.value.trim() ? state.shown : []).map(drawLine));
  const first = output.querySelector(".word");
  if (first) first.tabIndex = 0;
  if (!sentences.includes(state.selected)) state.selected = sentences[0] ?? null;
  $("copy").hidden = $("legend").hidden = !sentences.length;
  if (sentences.some(sentence => translationOf(sentence).hit_limit))
    showStatus("A translation ended only because it had reached the longest length allowed.");
}

function drawLine(sentences, line) {
  const drawn = element("p", { dir: "auto" });
  sentences.forEach((sentence, place) => {
    if (place) drawn.append(between(sentences[place - 1], sentence));
    drawn.append(...wordsOf(sentence, line, place));
  });
  return drawn;
}

function wordsOf(sentence, line, place) {
  const translation = translationOf(sentence);
  if (!isSpelled(translation)) return [translation.text];
  let before = "";
  return inWords(translation.tokens).flatMap(tokens => {
    const space = before && /^\s/.test(tokens[0].text) ? " " : "";
    const drawn = [space, drawWord({ sentence, tokens, before, line, place })];
    before += spell(tokens);
    return drawn;
  });
}

function drawWord(word) {
  const { sentence, tokens } = word, sure = probabilityOf(tokens);
  const drawn = element("span", { className: "word", tabIndex: -1, textContent: spell(tokens).trimStart() });
  if (sure < UNSURE) drawn.style.setProperty("--doubted", (1 - sure / UNSURE).toFixed(2));
  const attend = () => {
    rest();
    drawn.classList.add("active");
    const weights = weightsOf(sentence, tokens);
    highlight(word.line, word.place, weights);
    const from = PUNCTUATION.test(drawn.textContent) ? "" : originOf(sentence, weights);
    showStatus(...quoted(drawn.textContent), `, ${percent(sure)} sure`, ...(from ? [", from ", ...quoted(from)] : []));
  };
  const open = () => {
    move(drawn);
    attend();
    state.selected = sentence;
    emit("selected");
    openChoices(drawn, word);
  };
  drawn.addEventListener("pointerenter", attend);
  drawn.addEventListener("pointerleave", rest);
  drawn.addEventListener("focus", () => {
    attend();
    announce($("told").textContent);
  });
  drawn.addEventListener("blur", rest);
  drawn.addEventListener("click", open);
  drawn.addEventListener("keydown", event => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    open();
  });
  return drawn;
}

function rest() {
  clearHighlight();
  output.querySelector(".active")?.classList.remove("active");
  showStatus("");
}

// The output is one stop of the Tab key; arrow keys move within it, as the text runs.

function move(word) {
  if (!word) return;
  output.querySelectorAll('.word[tabindex="0"]').forEach(other => { other.tabIndex = -1; });
  word.tabIndex = 0;
  word.focus();
}

output.addEventListener("keydown", event => {
  const words = [...output.querySelectorAll(".word")], place = words.indexOf(document.activeElement);
  if (place < 0) return;
  const right = getComputedStyle(words[place].parentElement).direction === "rtl" ? -1 : 1;
  const to = { ArrowRight: place + right, ArrowLeft: place - right, ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: words.length - 1 };
  if (!(event.key in to)) return;
  event.preventDefault();
  move(words[to[event.key]]);
});

// Another translation of a sentence: the focus stays at its place.
on("chosen", () => {
  const place = [...output.querySelectorAll(".word")].findIndex(word => word.tabIndex === 0);
  draw();
  const words = output.querySelectorAll(".word"), word = words[Math.min(place, words.length - 1)];
  if (word && word !== words[0]) {
    words[0].tabIndex = -1;
    word.tabIndex = 0;
  }
  emit("drawn");
});
