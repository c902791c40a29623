// Translates as one types. Known lines are kept, so that only changed ones are requested.

import { $ } from "./dom.js";
import { showDetected } from "./languages.js";
import { drawMirror } from "./mirror.js";
import { draw } from "./output.js";
import { Unavailable, ask } from "./requests.js";
import { emit, state } from "./state.js";
import { showError, showStatus } from "./status.js";

const ALTERNATIVES = 3;
const text = $("text"), output = $("output");

let asking = null; // AbortController of the running request
let timer = 0, failures = 0;

function linesToAsk() {
  return [...new Set(text.value.split("\n"))].filter(line => line.trim() && !state.known.has(line) && !state.refused.has(line));
}

function setWaiting(waiting) {
  output.classList.toggle("waiting", waiting);
  output.setAttribute("aria-busy", waiting);
}

const isTooLong = () => [...text.value].length > state.settings.charLimit;

function countCharacters() {
  const length = [...text.value].length, limit = state.settings.charLimit;
  $("count").textContent = length ? `${length.toLocaleString()} / ${limit.toLocaleString()}` : "";
  $("count").classList.toggle("over", isTooLong());
  for (const id of ["clear", "share"]) $(id).hidden = !text.value;
}

export function changed() {
  asking?.abort();
  clearTimeout(timer);
  failures = 0;
  showStatus("");
  showError("");
  drawMirror();
  countCharacters();
  const over = isTooLong(), waiting = !over && linesToAsk().length > 0;
  if (over) showError(`The text is longer than ${state.settings.charLimit.toLocaleString()} characters; shorten it to have it translated.`);
  else if (waiting) timer = setTimeout(translate, state.settings.frontendTimeout);
  else finish();
  output.classList.toggle("stale", over || waiting);
  setWaiting(waiting);
}

export async function translate() {
  clearTimeout(timer);
  asking?.abort();
  const lines = linesToAsk(), mine = asking = new AbortController();
  if (!lines.length || !state.languages.length || isTooLong()) return;
  try {
    const alternatives = Math.min(ALTERNATIVES, state.settings.alternativesLimit);
    const answer = await ask("details", { q: lines.join("\n"), alternatives }, mine.signal);
    if (mine.signal.aborted) return;
    lines.forEach((line, number) =>
      state.known.set(line, answer.texts[0][number].filter(sentence => sentence.translations.length)));
    if (answer.detectedLanguage) showDetected(answer.detectedLanguage[0].language);
    finish();
  } catch (error) {
    if (!mine.signal.aborted) recover(error, lines);
  }
}

// Ask again where that helps: later, or without the line that is refused.
function recover(error, lines) {
  const [, number, why] = error.message.match(/^line (\d+): (.*)/s) ?? [];
  if (error instanceof Unavailable) {
    showError(error.notice);
    timer = setTimeout(translate, error.wait(failures++));
  } else if (number) {
    state.refused.set(lines[number - 1], why);
    if (lines.length > 1) translate();
    else finish();
  } else {
    setWaiting(false);
    showError(error.message);
  }
}

function finish() {
  failures = 0;
  output.classList.remove("stale");
  setWaiting(false);
  draw();
  drawMirror();
  const line = text.value.split("\n").find(line => state.refused.has(line));
  showError(line === undefined ? "" : `“${line}”: ${state.refused.get(line)}`);
  emit("drawn");
}

// As soon as the network is back.
addEventListener("online", () => {
  if (failures) translate();
});
