// The translation, or a link to the text, on the clipboard.

import { link } from "./address.js";
import { $ } from "./dom.js";
import { announce, showStatus } from "./status.js";
import { wholeText } from "./words.js";

function say(message) {
  showStatus(message);
  announce(message);
}

export async function copy() {
  try {
    await navigator.clipboard.writeText(wholeText());
    say("Copied");
  } catch {
    getSelection().selectAllChildren($("output")); // where there is no TLS, the clipboard is closed to scripts
    say(document.execCommand("copy") ? "Copied" : "Selected: copy it with Ctrl+C");
  }
}

async function share() {
  try {
    await navigator.clipboard.writeText(link());
    say("The link is copied. It holds the text.");
  } catch {
    history.replaceState(null, "", link());
    say("The link is in the address bar.");
  }
}

$("copy").addEventListener("click", copy);
$("share").addEventListener("click", share);
