// Translates as one types. Known lines are kept, so that only changed ones are requested.

const ALTERNATIVES = 3;
const FAINT = 0.15; // of the largest attention: below it nothing is marked
const AUTO = "auto";
// A word begins with a space, or is a letter of a script that puts none between words.
const BEGINS_WORD = /^[\s\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]/u;
// Punctuation, without signs that are read as words, such as %.
const PUNCTUATION = /^(?:(?![%&@#§])\p{P}|\s)*$/u;
const PUNCTUATION_AROUND = /^(?:(?![%&@#§])\p{P}|\s)+|(?:(?![%&@#§])\p{P}|\s)+$/gu;

const $ = id => document.getElementById(id);
const text = $("text"), mirror = $("mirror"), output = $("output"), source = $("source"), target = $("target");

let languages = [], settings = {};
let known = new Map();   // by line: its sentences, from /details
let refused = new Map(); // by line: why it cannot be translated
let chosen = new Map();  // by a sentence's source: which of its translations is shown
let shown = [];          // the sentences of each line of the output
let drawn = "";          // the text that they translate
let marks = [];          // in the mirror, of each line and sentence: an element for each token
let selected = null;     // the sentence whose alternatives are shown
let asking = null;       // AbortController of the running request
let timer = 0;

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// Languages

function targetsOf(code) {
  if (code !== AUTO) return languages.find(language => language.code === code).targets;
  return [...new Set(languages.flatMap(language => language.targets))];
}

const nameOf = code => languages.find(language => language.code === code)?.name ?? "Detect language";

function fill(select, codes, wanted) {
  select.replaceChildren(...codes.map(code => element("option", { value: code, textContent: nameOf(code) })));
  select.value = codes.includes(wanted) ? wanted : codes[0];
  select.disabled = codes.length === 1;
}

function setPair(from, into) {
  const sources = languages.filter(language => language.targets.length).map(language => language.code);
  fill(source, sources.length > 1 ? [AUTO, ...sources] : sources, from);
  fill(target, targetsOf(source.value), into);
  $("swap").disabled = source.value === AUTO || !targetsOf(target.value).includes(source.value);
  text.lang = source.value === AUTO ? "" : source.value;
  output.lang = target.value;
  known = new Map();
  refused = new Map();
  chosen = new Map();
}

// Requests

function changed() {
  asking?.abort();
  clearTimeout(timer);
  showStatus("");
  showError("");
  const length = [...text.value].length, over = length > settings.charLimit;
  $("count").textContent = length ? `${length.toLocaleString()} of ${settings.charLimit.toLocaleString()} characters` : "";
  $("count").classList.toggle("over", over);
  $("clear").hidden = !text.value;
  drawMirror();
  if (over) showError(`The text is longer than ${settings.charLimit.toLocaleString()} characters; shorten it to have it translated.`);
  else if (linesToAsk().length) timer = setTimeout(translate, settings.frontendTimeout);
  else {
    draw();
    showRefusal();
  }
  output.classList.toggle("waiting", linesToAsk().length > 0);
}

function linesToAsk() {
  return [...new Set(text.value.split("\n"))].filter(line => line.trim() && !known.has(line) && !refused.has(line));
}

async function translate() {
  const lines = linesToAsk(), mine = new AbortController();
  asking = mine;
  try {
    const alternatives = Math.min(ALTERNATIVES, settings.alternativesLimit);
    const response = await fetch("details", {
      method: "POST", headers: { "Content-Type": "application/json" }, signal: mine.signal,
      body: JSON.stringify(
        { q: lines.join("\n"), source: source.value, target: target.value, alternatives, api_key: $("key").value }) });
    const answer = await response.json().catch(() => ({ error: `The server answers ${response.status}.` }));
    if (mine.signal.aborted) return;
    if (response.status === 503) timer = setTimeout(translate, 1000 * (Number(response.headers.get("Retry-After")) || 2));
    const [, number, why] = response.ok ? [] : answer.error.match(/^line (\d+): (.*)/s) ?? [];
    if (number) {
      refused.set(lines[number - 1], why);
      if (lines.length > 1) return translate(); // the others
    } else if (!response.ok) throw new Error(answer.error);
    else lines.forEach((line, number) =>
      known.set(line, answer.texts[0][number].filter(sentence => sentence.translations.length)));
    if (answer.detectedLanguage) source.selectedOptions[0].textContent = `Detected: ${nameOf(answer.detectedLanguage[0].language)}`;
    draw();
    drawMirror();
    showRefusal();
  } catch (error) {
    if (mine.signal.aborted) return;
    showError(error instanceof TypeError ? "The server does not answer." : error.message);
  }
}

// Drawing

function showStatus(message) {
  $("told").textContent = message;
}

function showError(message) {
  $("error").textContent = message;
  $("error").hidden = !message;
}

function showWarnings(sentences) {
  const warnings = new Set(sentences.flatMap(sentence => sentence.warnings ?? []));
  $("warnings").textContent = [...warnings].map(warning => warning[0].toUpperCase() + warning.slice(1) + ".").join("\n");
}

function showRefusal() {
  const line = text.value.split("\n").find(line => refused.has(line));
  showError(line === undefined ? "" : `“${line}”: ${refused.get(line)}`);
}

const keyOf = sentence => sentence.source.join("");
const translationOf = sentence => sentence.translations[chosen.get(keyOf(sentence)) ?? 0];

function drawMirror() {
  const lines = text.value.split("\n");
  mirror.replaceChildren();
  marks = lines.map(line => {
    const ofLine = (known.get(line) ?? []).map(sentence => sentence.source.map(drawMark));
    mirror.append(known.has(line) ? "\n" : line + "\n");
    return ofLine;
  });
}

function drawMark(span) {
  const word = span.trimStart(), mark = element("span", { textContent: word });
  mirror.append(span.slice(0, span.length - word.length), mark);
  return mark;
}

function draw() {
  const lines = text.value.split("\n");
  shown = lines.map(line => known.get(line) ?? []);
  drawn = text.value;
  output.classList.remove("waiting");
  const sentences = shown.flat();
  output.replaceChildren(...(text.value.trim() ? shown : []).map(drawLine));
  const first = output.querySelector(".word");
  if (first) first.tabIndex = 0;
  showWarnings(sentences);
  if (!sentences.includes(selected)) selected = sentences[0] ?? null;
  drawAlternatives();
  $("copy").hidden = $("legend").hidden = !sentences.length;
  if (sentences.some(sentence => translationOf(sentence).hit_limit))
    showStatus("A translation ended only because it had reached the longest length allowed.");
}

function drawLine(sentences, number) {
  const line = element("p", { dir: "auto" });
  sentences.forEach((sentence, place) => {
    if (place) line.append(between(sentences[place - 1], sentence));
    line.append(...wordsOf(sentence, () => marks[number]?.[place] ?? []));
  });
  return line;
}

function wordsOf(sentence, marksOf) {
  const { text, tokens } = translationOf(sentence);
  // Where characters were copied into the text, tokens and text differ, and the text is what counts.
  if (tokens.map(token => token.text).join("").trim() !== text) return [text];
  return inWords(tokens, token => token.text).flatMap((word, number) => {
    const space = number && /^\s/.test(word[0].text) ? " " : "";
    return [space, drawWord(sentence, word, marksOf)];
  });
}

function inWords(pieces, textOf) {
  const words = [];
  for (const piece of pieces) {
    if (!words.length || BEGINS_WORD.test(textOf(piece))) words.push([]);
    words.at(-1).push(piece);
  }
  return words;
}

function drawWord(sentence, tokens, marksOf) {
  const parts = tokens.map((token, number) => {
    const part = element("span", { textContent: number ? token.text : token.text.trimStart() });
    part.style.setProperty("--doubted", (1 - Math.exp(token.log_probability)).toFixed(2));
    return part;
  });
  const word = element("span", { className: "word", tabIndex: -1 }, ...parts);
  word.setAttribute("role", "button");
  const attend = () => {
    rest();
    word.classList.add("active");
    const weights = weightsOf(sentence, tokens);
    marksOf().forEach((mark, place) => mark.style.setProperty("--weight", weights[place]));
    const sure = Math.round(100 * Math.exp(tokens.reduce((sum, token) => sum + token.log_probability, 0)));
    const from = PUNCTUATION.test(word.textContent) ? "" : originOf(sentence, weights);
    showStatus(`“${word.textContent}”, ${sure} % sure` + (from && `, from “${from}”`));
  };
  const select = () => {
    attend();
    selected = sentence;
    drawAlternatives();
  };
  word.addEventListener("pointerenter", attend);
  word.addEventListener("pointerleave", rest);
  word.addEventListener("focus", attend);
  word.addEventListener("blur", rest);
  word.addEventListener("click", () => {
    move(word);
    select();
  });
  word.addEventListener("keydown", event => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    select();
  });
  return word;
}

function drawAlternatives() {
  const translations = selected?.translations ?? [];
  $("alternatives").hidden = translations.length < 2;
  $("alternatives-title").textContent = selected ? `Translations of “${keyOf(selected).trim()}”` : "";
  $("ranked").replaceChildren(...translations.map(({ text, score }, rank) => {
    const value = element("data", { value: score, textContent: score.toFixed(2).replace("-", "−"), title: "Score: the closer to 0, the better" });
    const button = element("button", { type: "button" }, element("span", { textContent: text, dir: "auto", lang: target.value }), value);
    button.setAttribute("aria-pressed", translationOf(selected) === translations[rank]);
    button.addEventListener("click", () => {
      chosen.set(keyOf(selected), rank);
      draw();
      $("ranked").children[rank].firstChild.focus();
    });
    return element("li", {}, button);
  }));
}

// Attention of a word

function weightsOf(sentence, tokens) {
  const spoken = tokens.filter(token => !PUNCTUATION.test(token.text)); // a full stop at a word's end is not the word
  const weights = sentence.source.map((span, place) => spoken.length && PUNCTUATION.test(span) ? 0
    : (spoken.length ? spoken : tokens).reduce((sum, token) => sum + token.attention[place], 0));
  const most = Math.max(...weights);
  return weights.map(weight => (weight <= FAINT * most ? 0 : weight / most));
}

// The source word with most of the weights, without the punctuation beside it.
function originOf(sentence, weights) {
  const words = inWords(sentence.source.map((text, place) => ({ text, weight: weights[place] })), piece => piece.text);
  const weightOf = word => word.reduce((sum, piece) => sum + piece.weight, 0);
  const best = words.reduce((best, word) => weightOf(word) > weightOf(best) ? word : best);
  return weightOf(best) ? best.map(piece => piece.text).join("").replace(PUNCTUATION_AROUND, "") : "";
}

function rest() {
  for (const mark of mirror.children) mark.style.removeProperty("--weight");
  output.querySelector(".active")?.classList.remove("active");
  showStatus("");
}

// The output is one stop of the Tab key; arrow keys move within it.

function move(word) {
  if (!word) return;
  output.querySelectorAll('.word[tabindex="0"]').forEach(other => { other.tabIndex = -1; });
  word.tabIndex = 0;
  word.focus();
}

output.addEventListener("keydown", event => {
  const words = [...output.querySelectorAll(".word")], place = words.indexOf(document.activeElement);
  const to = { ArrowRight: place + 1, ArrowDown: place + 1, ArrowLeft: place - 1, ArrowUp: place - 1, Home: 0, End: words.length - 1 };
  if (!(event.key in to)) return;
  event.preventDefault();
  move(words[to[event.key]]);
});

// The controls

text.addEventListener("input", changed);
$("key-field").addEventListener("change", changed);
$("key-field").addEventListener("submit", event => event.preventDefault());
for (const select of [source, target]) select.addEventListener("change", () => { setPair(source.value, target.value); changed(); });

$("swap").addEventListener("click", () => {
  if (drawn === text.value) text.value = wholeText(); // what has no translation yet stays
  setPair(target.value, source.value);
  changed();
});

$("clear").addEventListener("click", () => {
  text.value = "";
  changed();
  text.focus();
});

$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(wholeText());
    showStatus("Copied");
  } catch {
    getSelection().selectAllChildren(output);
    showStatus("Selected: copy it with Ctrl+C");
  }
});

// The space between two sentences of the source, as the server adapts it to the script of the translation.
function between(before, after) {
  const text = translationOf(before).text.slice(-1) + translationOf(after).text.slice(0, 1);
  const [space] = before.source.join("").match(/\s*$/);
  return /[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uff60]/.test(text)
    ? space.replace(/[ \u00a0]/g, "") : space.replaceAll("\u3000", " ") || " ";
}

function wholeText() {
  return shown.map(line => {
    const sentences = line.filter(sentence => translationOf(sentence).text);
    return sentences.map((sentence, place) => (place ? between(sentences[place - 1], sentence) : "") + translationOf(sentence).text).join("");
  }).join("\n");
}

try {
  [languages, settings] = await Promise.all(["languages", "frontend/settings"].map(async path => (await fetch(path)).json()));
  $("key-field").hidden = !settings.keyRequired;
  setPair(settings.language.source.code, settings.language.target.code);
  changed();
} catch {
  showError("The server does not answer.");
}
