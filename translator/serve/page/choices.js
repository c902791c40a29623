// The likeliest other words at a place, and the translations that go on from them.

import { $, element, moveByArrows, quoted } from "./dom.js";
import { ask, languagesAsked } from "./requests.js";
import { choose, keyOf, state } from "./state.js";
import { bare, beginsWord, inWords, isSpelled, percent, respread, spell } from "./words.js";

const SHOWN = 5, ASKED = 9; // some tokens lead to the same word
const GAP = 6; // pixels
const box = $("choices"), list = $("choices-list"), note = $("choices-note");

let asking = null;

export async function openChoices(word, { sentence, tokens, before }) {
  asking?.abort();
  const mine = asking = new AbortController(), written = bare(spell(tokens)) || spell(tokens).trim();
  $("choices-title").replaceChildren("Instead of ", ...quoted(written));
  list.replaceChildren();
  note.textContent = "Looking for other words…";
  show(word);
  try {
    const choices = await otherWords(sentence, before, written, mine.signal);
    if (mine.signal.aborted) return;
    note.textContent = choices.length ? "" : "The model knows no other word here.";
    list.replaceChildren(...choices.map(choice => drawChoice(sentence, choice)));
    list.querySelector("button")?.focus();
  } catch (error) {
    if (!mine.signal.aborted) note.textContent = error.message;
  }
  place(word);
}

function show(word) {
  if (box.matches(":popover-open")) box.hidePopover();
  box.showPopover({ source: word });
  place(word);
}

// Below the word, within the window.
function place(word) {
  const at = word.getBoundingClientRect(), right = document.documentElement.clientWidth - box.offsetWidth - GAP;
  box.style.left = `${scrollX + Math.max(GAP, Math.min(at.left, right))}px`;
  box.style.top = `${scrollY + at.bottom + GAP}px`;
}

// Return the words that may stand behind the translation's beginning, likeliest first, without the one written.
async function otherWords(sentence, before, written, signal) {
  const key = keyOf(sentence), fields = { ...languagesAsked(true), q: key };
  const found = onlySentence(await ask("details", { ...fields, prefix: before, others: ASKED }, signal), 0);
  const candidates = candidatesOf(found.translations[0].tokens, before.length)
    .filter(({ text }) => !before || beginsWord(text));
  const room = Math.floor(state.settings.charLimit / (Math.max(key.length, before.length) + 20));
  const prefixes = candidates.slice(0, Math.max(1, Math.min(room, state.settings.textsLimit))).map(({ text }) => before + text);
  if (!prefixes.length) return [];
  const answer = await ask("details", { ...fields, q: prefixes.map(() => key), prefix: prefixes }, signal);
  const choices = new Map();
  prefixes.forEach((_, number) => {
    const { source, translations: [translation] } = onlySentence(answer, number);
    const word = wordAt(translation, before.length) || candidates[number].text.trim();
    for (const token of translation.tokens) token.attention = respread(token.attention, source, sentence.source);
    if (word !== written && !choices.has(word)) choices.set(word, { word, translation, ...candidates[number] });
  });
  return [...choices.values()].slice(0, SHOWN);
}

function onlySentence(answer, number) {
  const sentences = answer.texts[number].flat();
  if (sentences.length !== 1 || !sentences[0].translations[0]?.tokens.length) throw new Error("This sentence cannot be continued from here.");
  return sentences[0];
}

// The token behind a beginning of this many characters, and the others in its place, likeliest first.
function candidatesOf(tokens, length) {
  let read = 0;
  const token = tokens.find(({ text }) => (read += text.length) > length);
  if (!token) return [];
  return [token, ...token.others].sort((a, b) => b.log_probability - a.log_probability)
    .map(({ text, log_probability }) => ({ text, log_probability }));
}

// The word that the character after a beginning of this many characters is in.
function wordAt(translation, length) {
  if (!isSpelled(translation)) return "";
  let read = 0;
  const word = inWords(translation.tokens).find(tokens => (read += spell(tokens).length) > length);
  return word ? bare(spell(word)) || spell(word).trim() : "";
}

function drawChoice(sentence, { word, translation, log_probability }) {
  const lang = $("target").value;
  const button = element("button", { type: "button" },
    element("span", { className: "choice", dir: "auto", lang, textContent: word }),
    element("data", { value: log_probability, textContent: percent(Math.exp(log_probability)) }),
    element("span", { className: "whole", dir: "auto", lang, textContent: translation.text }));
  button.addEventListener("click", () => {
    box.hidePopover();
    choose(sentence, translation);
    document.querySelector('#output .word[tabindex="0"]')?.focus();
  });
  return element("li", {}, button);
}

moveByArrows(list);
box.addEventListener("toggle", event => {
  if (event.newState === "closed") asking?.abort();
});
