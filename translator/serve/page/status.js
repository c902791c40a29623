// What the page says. Only #status is read out by screen readers, and #error at once.

import { $ } from "./dom.js";
import { on, state } from "./state.js";
import { wholeText } from "./words.js";

const PAUSE = 700; // milliseconds without a new translation, after which it is read out

let timer = 0, announced = "";

export function announce(message) {
  $("status").textContent = message;
}

export function showStatus(...message) {
  $("told").replaceChildren(...message);
}

export function showError(message) {
  $("error").textContent = message;
  $("error").hidden = !message;
}

function showWarnings(sentences) {
  const warnings = new Set(sentences.flatMap(sentence => sentence.warnings ?? []));
  $("warnings").textContent = [...warnings].map(warning => warning[0].toUpperCase() + warning.slice(1) + ".").join("\n");
}

on("drawn", () => {
  showWarnings(state.shown.flat());
  clearTimeout(timer);
  timer = setTimeout(() => {
    const message = [$("warnings").textContent, wholeText().trim()].filter(Boolean).join("\n");
    if (message !== announced) announce(message);
    announced = message;
  }, PAUSE);
});
