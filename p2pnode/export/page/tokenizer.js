// Byte-level BPE: text to token ids and back.

// How GPT-2 cuts a text into words.
const WORDS =
  /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

class Tokenizer {
  // tokens: written form by id, null for ids without one; merges: pairs "a b", the first to be
  // joined first; special: ids that no text holds; alphabet: written character of each byte
  constructor({ tokens, special, separator, merges, alphabet }) {
    this.separator = separator;
    this.vocabulary = tokens.length;
    this.tokens = tokens;
    this.special = new Set(special);
    this.ids = new Map(tokens.map((token, id) => [token, id]).filter(([, id]) => !this.special.has(id)));
    this.ranks = new Map(merges.map((pair, rank) => [pair, rank]));
    this.alphabet = alphabet;
    this.bytes = new Map(alphabet.map((character, byte) => [character, byte]));
  }

  encode(text) {
    const whole = text.replace(/\p{Surrogate}/gu, "?"); // halves of characters
    const words = this.ranks.size ? whole.match(WORDS) ?? [] : [whole];
    return words.flatMap((word) => this.encodeWord(word));
  }

  encodeWord(word) {
    const parts = Array.from(new TextEncoder().encode(word), (byte) => this.alphabet[byte]);
    while (this.ranks.size) {
      let best = -1;
      let rank = Infinity;
      for (let i = 0; i + 1 < parts.length; i++) {
        const found = this.ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
        if (found < rank) [best, rank] = [i, found];
      }
      if (best < 0) break;
      parts.splice(best, 2, parts[best] + parts[best + 1]);
    }
    return parts.map((part) => this.ids.get(part)).filter((id) => id !== undefined);
  }

  // UTF-8 of one token, which may end inside a character; special ones give nothing.
  decode(id) {
    if (this.special.has(id) || this.tokens[id] == null) return new Uint8Array(0);
    return Uint8Array.from(this.tokens[id], (character) => this.bytes.get(character));
  }
}
