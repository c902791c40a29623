// Starts the page: loads languages and settings, and the text that was there.

import "./about.js";
import "./alternatives.js";
import { fromAddress, initial } from "./address.js";
import { $ } from "./dom.js";
import { startFiles } from "./files.js";
import { setPair } from "./languages.js";
import { startRecent } from "./recent.js";
import { Unavailable, request } from "./requests.js";
import "./shortcuts.js";
import "./speech.js";
import { emit, on, state } from "./state.js";
import { showError } from "./status.js";
import { changed } from "./translation.js";

const text = $("text");

async function loadSettings() {
  for (let failures = 0; ; failures++) {
    try {
      return await Promise.all([request("languages"), request("frontend/settings")]);
    } catch (error) {
      showError(error.notice ?? error.message);
      if (!(error instanceof Unavailable)) throw error;
      await new Promise(done => setTimeout(done, error.wait(failures)));
    }
  }
}

// Show a text and its languages; what is not named stays.
function restore({ q = text.value, source = $("source").value, target = $("target").value }) {
  setPair(source, target);
  text.value = q;
  emit("changed");
}

[state.languages, state.settings] = await loadSettings();
$("key-field").hidden = !state.settings.keyRequired;
startFiles();
startRecent(restore);
on("changed", changed);
const { source, target } = state.settings.language, wanted = initial();
setPair(source.code, target.code);
restore({ ...wanted, q: text.value || wanted.q }); // what was typed meanwhile stays
text.addEventListener("input", () => emit("changed"));
$("key-field").addEventListener("change", () => emit("changed"));
$("key-field").addEventListener("submit", event => event.preventDefault());
addEventListener("hashchange", () => {
  const named = fromAddress();
  if (named.q !== undefined) restore(named);
});
