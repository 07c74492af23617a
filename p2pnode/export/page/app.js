// The page: reads what is baked in, and generates when asked to. It never asks a network.

const page = JSON.parse(document.getElementById("facts").textContent);

function baked(id) {
  const element = document.getElementById(id);
  const text = atob(element.textContent);
  element.remove(); // its text is not needed twice
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes.buffer;
}

const weights = readWeights(page.tensors, baked("weights"));
weights.logits = quantiseRows(weights.embed, page.shape.width);
const tokenizer = new Tokenizer(page.tokenizer);

// Token ids after a prompt, one by one: train/generate.py.
function* generate(prompt, count, options) {
  const decoder = new Decoder(page.shape, weights);
  const sampler = new Sampler(options);
  const ids = [tokenizer.separator, ...tokenizer.encode(prompt).slice(-(page.shape.seq_len - 1))];
  let logits;
  for (const id of ids) {
    logits = decoder.feed(id);
    yield null; // nothing yet, but time to look at the page
  }
  for (let position = 0; position < count; position++) {
    const token = sampler.pick(logits.subarray(0, tokenizer.vocabulary), position);
    if (token === tokenizer.separator) return;
    yield token;
    if (position + 1 < count) logits = decoder.feed(token);
  }
}

const form = document.getElementById("form");
const output = document.getElementById("output");
const note = document.getElementById("note");
let stopped = true;

// What the fields say; null if one of them makes no sense.
function chosen() {
  const number = (name) => Number(form.elements[name].value);
  if (!form.reportValidity()) return null;
  return {
    count: number("count"),
    options: {
      temperature: number("temperature"),
      topK: number("topK"),
      topP: number("topP"),
      seed: BigInt(form.elements.seed.value),
    },
  };
}

async function run() {
  const choice = chosen();
  if (choice === null) return;
  stopped = false;
  form.elements.go.textContent = "Stop";
  output.textContent = form.elements.prompt.value;
  const utf8 = new TextDecoder("utf-8", { ignoreBOM: true });
  let made = 0;
  let looked = performance.now();
  const began = looked;
  try {
    for (const token of generate(form.elements.prompt.value, choice.count, choice.options)) {
      if (token !== null) {
        made++;
        output.append(utf8.decode(tokenizer.decode(token), { stream: true }));
      }
      if (performance.now() - looked > 30) {
        await new Promise((resolve) => setTimeout(resolve));
        looked = performance.now();
        note.textContent = `${made} tokens`;
      }
      if (stopped) break;
    }
    const seconds = (performance.now() - began) / 1000;
    note.textContent = `${made} tokens in ${seconds.toFixed(1)} s`;
  } catch (error) {
    note.textContent = error.message;
  }
  stopped = true;
  form.elements.go.textContent = "Generate";
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (stopped) run();
  else stopped = true;
});
document.getElementById("about").textContent = page.about;
form.elements.go.disabled = false;
