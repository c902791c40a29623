// What the page knows, and events among its parts.

export const AUTO = "auto";

export const state = {
  languages: [], settings: {},
  known: new Map(),   // by line: its sentences, from /details
  refused: new Map(), // by line: why it cannot be translated
  chosen: new Map(),  // by a sentence's source: which of its translations is shown
  shown: [],          // the sentences of each line of the output
  drawn: "",          // the text that they translate
  selected: null,     // the sentence whose alternatives are shown
  detected: null,     // the language found where it is detected
};

export function forget() {
  Object.assign(state, { known: new Map(), refused: new Map(), chosen: new Map(), detected: null });
}

export const keyOf = sentence => sentence.source.join("");
export const translationOf = sentence => sentence.translations[state.chosen.get(keyOf(sentence)) ?? 0];

// Show a translation, which need not be among those of the sentence yet.
export function choose(sentence, translation) {
  let place = sentence.translations.findIndex(other => other.text === translation.text);
  if (place < 0) place = sentence.translations.push(translation) - 1;
  state.chosen.set(keyOf(sentence), place);
  emit("chosen");
}

// Events: "changed" (text or languages), "drawn" (the output), "selected" (a sentence), "chosen" (another translation of it).
const events = new EventTarget();
export const on = (name, listener) => events.addEventListener(name, listener);
export const emit = name => events.dispatchEvent(new Event(name));
