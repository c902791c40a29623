// Tokens as words, and sentences as a text.

import { state, translationOf } from "./state.js";

// A word begins with a space, or is a letter of a script that puts none between words.
const BEGINS_WORD = /^[\s\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]/u;
// Punctuation, without signs that are read as words, such as %.
export const PUNCTUATION = /^(?:(?![%&@#§])\p{P}|\s)*$/u;
const PUNCTUATION_AROUND = /^(?:(?![%&@#§])\p{P}|\s)+|(?:(?![%&@#§])\p{P}|\s)+$/gu;
const FAINT = 0.15; // of the largest attention: below it nothing is marked

export const beginsWord = text => BEGINS_WORD.test(text) || PUNCTUATION.test(text);
export const bare = text => text.replace(PUNCTUATION_AROUND, "");

export function inWords(pieces) {
  const words = [];
  for (const piece of pieces) {
    if (!words.length || BEGINS_WORD.test(piece.text)) words.push([]);
    words.at(-1).push(piece);
  }
  return words;
}

export const spell = tokens => tokens.map(token => token.text).join("");

// Where characters were copied into the text, tokens and text differ, and the text is what counts.
export const isSpelled = translation => spell(translation.tokens).trim() === translation.text;

// The probability of a word is that of all its tokens.
export const probabilityOf = tokens => Math.exp(tokens.reduce((sum, token) => sum + token.log_probability, 0));

export const percent = probability => {
  const value = 100 * probability;
  return value < 0.1 ? "<0.1 %" : `${value < 1 ? value.toFixed(1) : Math.round(value)} %`;
};

// Attention of a word to each token of the source, from 0 to 1

export function weightsOf(sentence, tokens) {
  const spoken = tokens.filter(token => !PUNCTUATION.test(token.text)); // a full stop at a word's end is not the word
  const weights = sentence.source.map((span, place) => spoken.length && PUNCTUATION.test(span) ? 0
    : (spoken.length ? spoken : tokens).reduce((sum, token) => sum + token.attention[place], 0));
  const most = Math.max(...weights);
  return weights.map(weight => (weight <= FAINT * most ? 0 : weight / most));
}

// The source word with most of the weights, without the punctuation beside it.
export function originOf(sentence, weights) {
  const words = inWords(sentence.source.map((text, place) => ({ text, weight: weights[place] })));
  const weightOf = word => word.reduce((sum, piece) => sum + piece.weight, 0);
  const best = words.reduce((best, word) => weightOf(word) > weightOf(best) ? word : best);
  return weightOf(best) ? bare(spell(best)) : "";
}

// Attention to the spans of a sentence, for other spans of the same sentence.
export function respread(attention, spans, others) {
  const bounds = parts => parts.reduce((ends, part) => [...ends, ends.at(-1) + part.length], [0]);
  const from = bounds(spans), into = bounds(others);
  return others.map((_, place) => spans.reduce((sum, span, number) => {
    const shared = Math.min(from[number + 1], into[place + 1]) - Math.max(from[number], into[place]);
    return shared > 0 ? sum + attention[number] * shared / span.length : sum;
  }, 0));
}

// The space between two sentences of the source, as the server adapts it to the script of the translation.
export function between(before, after) {
  const text = translationOf(before).text.slice(-1) + translationOf(after).text.slice(0, 1);
  const [space] = before.source.join("").match(/\s*$/);
  return /[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uff60]/.test(text)
    ? space.replace(/[ \u00a0]/g, "") : space.replaceAll("\u3000", " ") || " ";
}

export function wholeText() {
  return state.shown.map(line => {
    const sentences = line.filter(sentence => translationOf(sentence).text);
    return sentences.map((sentence, place) => (place ? between(sentences[place - 1], sentence) : "") + translationOf(sentence).text).join("");
  }).join("\n");
}
