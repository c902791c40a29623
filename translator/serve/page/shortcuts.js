// Ctrl+Enter translates at once, Ctrl+Shift+C copies the translation, Esc goes back to the text and then clears it.

import { copy } from "./copying.js";
import { $, replaceText } from "./dom.js";
import { translate } from "./translation.js";

const text = $("text");

function escape(event) {
  if (event.isComposing || document.querySelector(":popover-open, dialog[open]")) return; // it closes that
  if (event.target.matches("select")) return;
  event.preventDefault();
  if (document.activeElement === text) replaceText(""); // Ctrl+Z brings it back
  else text.focus();
}

addEventListener("keydown", event => {
  const control = event.ctrlKey || event.metaKey, key = event.key.toLowerCase();
  if (key === "escape") escape(event);
  else if (control && key === "enter") translate();
  else if (control && event.shiftKey && key === "c" && !$("copy").hidden) copy();
  else return;
  if (control) event.preventDefault();
});

$("clear").addEventListener("click", () => {
  replaceText("");
  text.focus();
});
