/**
 * Trains the embedded engine's model: `node tools/embedded-model/train-model.ts [folder]`. The same sources always
 * yield the same bytes; `test/unit/embedded/training.test.ts` checks the committed files.
 */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { encodeNgrams } from '../../src/embedded/engine/ngram-file.ts'
import { type SpecialToken, splitWords, tokenizerConfigJson, tokenizerJson, trainBpe } from './bpe.ts'
import { type CorpusConversation, makeCorpus } from './corpus.ts'
import { countNgrams } from './count-ngrams.ts'

const VOCABULARY_SIZE = 2048
const ORDER = 4
const MODEL_MAX_LENGTH = 32_768

const SPECIAL_TOKENS: readonly SpecialToken[] = [
  { text: '<|endoftext|>', special: true },
  { text: '<|im_start|>', special: true },
  { text: '<|im_end|>', special: true },
  // Parsers search the text for these, so decoding must keep them, as in Qwen3's tokenizer.
  { text: '<tool_call>', special: false },
  { text: '</tool_call>', special: false },
  { text: '<tool_response>', special: false },
  { text: '</tool_response>', special: false },
  { text: '<think>', special: false },
  { text: '</think>', special: false },
]

/** Finds special tokens in a text; the group makes `split` keep them. */
const MARKUP = /(<\|\w+\|>|<\/?(?:tool_call|tool_response|think)>)/

/** Writes `tokenizer.json`, `tokenizer_config.json` and `ngrams.bin` into the folder. */
export function trainModel(folder: string): void {
  const pieces = makeCorpus().map((conversation) => renderConversation(conversation).split(MARKUP))
  const isSpecial = (piece: string) => SPECIAL_TOKENS.some(({ text }) => text === piece)

  const vocabulary = trainBpe(
    pieces.flat().filter((piece) => !isSpecial(piece)),
    VOCABULARY_SIZE - SPECIAL_TOKENS.length,
  )
  const specialIds = new Map(SPECIAL_TOKENS.map(({ text }, i) => [text, vocabulary.tokens.length + i]))
  const idsOf = (piece: string): number[] => {
    const special = specialIds.get(piece)
    return special === undefined
      ? splitWords(piece).flatMap((word) => vocabulary.wordIds.get(word)!)
      : [special]
  }
  const vocabularySize = vocabulary.tokens.length + SPECIAL_TOKENS.length
  const counts = countNgrams(
    pieces.map((document) => document.flatMap(idsOf)),
    vocabularySize,
    ORDER,
  )

  mkdirSync(folder, { recursive: true })
  writeFileSync(join(folder, 'tokenizer.json'), tokenizerJson(vocabulary, SPECIAL_TOKENS))
  writeFileSync(
    join(folder, 'tokenizer_config.json'),
    tokenizerConfigJson({
      vocabulary,
      specials: SPECIAL_TOKENS,
      eosToken: '<|im_end|>',
      padToken: '<|endoftext|>',
      chatTemplate: readFileSync(new URL('chat-template.jinja', import.meta.url), 'utf8'),
      modelMaxLength: MODEL_MAX_LENGTH,
    }),
  )
  writeFileSync(join(folder, 'ngrams.bin'), encodeNgrams(counts))
}

/** Renders a conversation like the chat template; `<|endoftext|>` ends the document. */
function renderConversation(conversation: CorpusConversation): string {
  const messages = conversation.map(({ role, text }) => `<|im_start|>${role}\n${text}<|im_end|>\n`)
  return `${messages.join('')}<|endoftext|>`
}

if (import.meta.main) {
  trainModel(process.argv[2] ?? fileURLToPath(new URL('../../src/embedded/model', import.meta.url)))
}
