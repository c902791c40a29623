// Speech by the browser, where it has it.

import { $, replaceText } from "./dom.js";
import { languagesAsked } from "./requests.js";
import { on } from "./state.js";
import { showError } from "./status.js";
import { wholeText } from "./words.js";

const Recognition = window.SpeechRecognition ?? window.webkitSpeechRecognition;
const text = $("text"), dictate = $("dictate");

// Only voices of this machine: others send the text away.
const voiceFor = code => window.speechSynthesis?.getVoices()
  .find(voice => voice.localService && voice.lang.toLowerCase().split(/[-_]/)[0] === code.toLowerCase().split(/[-_]/)[0]);

function hear(button, textOf, languageOf) {
  const update = () => { button.hidden = !textOf().trim() || !voiceFor(languageOf()); };
  button.addEventListener("click", () => {
    const playing = speechSynthesis.speaking;
    speechSynthesis.cancel();
    if (playing) return;
    const voice = voiceFor(languageOf()), speech = new SpeechSynthesisUtterance(textOf());
    speechSynthesis.speak(Object.assign(speech, { voice, lang: voice.lang }));
  });
  for (const name of ["changed", "drawn"]) on(name, update);
  window.speechSynthesis?.addEventListener?.("voiceschanged", update);
}

function listen() {
  const recognition = new Recognition(), before = text.value && `${text.value.trimEnd()} `;
  Object.assign(recognition, { continuous: true, interimResults: true, lang: languagesAsked(true).source.replace("auto", "") });
  recognition.addEventListener("result", event =>
    replaceText(before + [...event.results].map(([best]) => best.transcript).join("")));
  recognition.addEventListener("error", event => {
    if (event.error !== "aborted") showError(`Dictation failed: ${event.error}.`);
  });
  recognition.addEventListener("end", () => {
    running = null;
    dictate.setAttribute("aria-pressed", false);
  });
  recognition.start();
  dictate.setAttribute("aria-pressed", true);
  return recognition;
}

let running = null;

hear($("hear-text"), () => text.value, () => languagesAsked(true).source);
hear($("hear-output"), wholeText, () => languagesAsked().target);
dictate.hidden = !Recognition;
dictate.addEventListener("click", () => {
  if (running) running.stop();
  else running = listen();
});
