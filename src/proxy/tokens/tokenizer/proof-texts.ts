/**
 * Texts for which different tokenizers have returned different ids. Two tokenizers must agree on all of them before one
 * replaces the other.
 */

const TEXTS = [
  "I'll say it's THEY'RE they've 'S 'Ll d'accord l’homme",
  '1 12 123 1234 12345 1,234.56 0x1F ٣٤٥ ४५६ ௧௨ Ⅷ ½ ²³ ①②',
  ' \t\n\r\n\r \u00a0\u2003\u3000\u200b\ufeff a  b   c\n\n\n  d\t\te \n',
  'naïve café cafe\u0301 Å A\u030a ﬁ ﬂ ﹏ Ǆ ſ ß ẞ İ ı Ω Ω',
  '我们在这里。東京タワー、서울특별시 ไม่เป็นไร ភាសាខ្មែរ မြန်မာ བོད་ཡིག',
  'हिन्दी क्षत्रिय বাংলা தமிழ் తెలుగు ગુજરાતી עִבְרִית العربيّة فارسی',
  '👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 ❤️ ♥ 🫠 \u{1f9d1}\u{1f3ff}\u200d\u{1f680}',
  '\u1ac9\u094d \u0344 \u0f73 \u{1d15e} \u2126 \ufb1d \u{2f800} \u{10ffff} \ue000 \ud800',
  'function f(x){return x*2;}//comment\n\tif (a&&b||c) { d["key"] = `v`; }\r\n}',
  '{"a":[1,2.5e-3,null,true],"b":"\\u00e9\\n","c":{}}  <div class="x">&nbsp;</div>',
  '--- === *** ... !!! ??? ((())) [[[ ]]] {{{ }}} <<<>>> ///\\\\\\ ___ ~~~ $$$ %%% ^^^ @@@ ###',
  `${'a'.repeat(300)} ${'ab'.repeat(100)} ${' '.repeat(130)}x${'\n'.repeat(70)}y${'='.repeat(140)}`,
  'HTTPServer camelCase snake_case SCREAMING_CASE kebab-case v1.2.3-rc.4+build.5 ../path/to/file.tsx:12:34',
  '\u0000\u0001\u001f\u007f\u0080\u009f\u00ad\u2028\u2029\u2060\ufff9\ufffd',
]

/** The maximum number of added tokens in the texts: a tokenizer may have thousands of similar ones. */
const MAX_TOKENS = 64

/** Returns the texts to compare. @param addedTokens the texts of the added tokens */
export function createProofTexts(addedTokens: readonly string[]): string[] {
  const some = [...addedTokens.slice(0, MAX_TOKENS / 2), ...addedTokens.slice(-MAX_TOKENS / 2)]
  const among = some.flatMap((token) => [
    token,
    `a${token}b`,
    ` ${token}\n ${token}${token} \t`,
    `${token.slice(0, -1)} ${token.slice(1)}`,
  ])
  return ['', ' ', ...TEXTS, TEXTS.join(''), among.join('\n'), among.join('')]
}
