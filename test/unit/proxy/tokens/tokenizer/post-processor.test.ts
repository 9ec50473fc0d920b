import { Tokenizer as HuggingFaceTokenizer } from '@huggingface/tokenizers'
import t, { type Test } from 'tap'
import { getEmbeddedModelFolder } from '../../../../../src/embedded/engine/embedded-model.ts'
import { readTextSpecialTokens } from '../../../../../src/proxy/tokens/tokenizer/post-processor.ts'
import { loadTokenizer } from '../../../../../src/proxy/tokens/tokenizer/tokenizer.ts'
import { readTokenizerFiles } from '../../../../../src/proxy/tokens/tokenizer/tokenizer-files.ts'
import { IS_FULL } from '../../../../helpers/tier.ts'
import { modelDirectory, REAL_MODELS, readFixture } from '../real-models.ts'

const BYTES = { type: 'ByteLevel', add_prefix_space: true, trim_offsets: false, use_regex: true }
const special = (id: string) => ({ SpecialToken: { id, type_id: 0 } })
const TEXT = { Sequence: { id: 'A', type_id: 0 } }
const PAIR = [TEXT, { Sequence: { id: 'B', type_id: 0 } }]

function createTemplate(...single: object[]) {
  return { type: 'TemplateProcessing', single, pair: PAIR, special_tokens: {} }
}

/** Checks that the ids of texts with special tokens are those that Hugging Face's JavaScript library returns. */
function checkIds(t: Test, files: ReturnType<typeof readTokenizerFiles>, texts: readonly string[]) {
  const tokenizer = loadTokenizer(files)
  const { tokenizerJson, tokenizerConfig } = files
  const library = new HuggingFaceTokenizer(tokenizerJson, tokenizerConfig)
  for (const [index, text] of texts.entries()) {
    const { ids } = library.encode(text, { add_special_tokens: true })
    t.same([...tokenizer.addSpecialTokens(tokenizer.encode(text))], ids, `text ${index}`)
  }
}

/** Without `FULL=1`, one model whose tokenizer adds a begin-of-text token. */
const MODELS = IS_FULL ? REAL_MODELS : (['llama3_2'] as const)

for (const model of MODELS) {
  t.test(`${model}: texts get the special tokens that the library adds`, async (t) => {
    const { texts, withSpecialTokens } = readFixture(model)
    const samples = ['', withSpecialTokens.text, ...texts.map(({ text }) => text)]
    checkIds(t, readTokenizerFiles(modelDirectory(model)), samples)
  })
}

t.test('each kind of post-processor adds the tokens that the library adds', async (t) => {
  const files = readTokenizerFiles(getEmbeddedModelFolder())
  const [a, b] = files.tokenizerJson.added_tokens!.map(({ content }) => content) as [string, string]
  const postProcessors: Record<string, object | null> = {
    none: null,
    bytes: BYTES,
    'a template': createTemplate(special(a), TEXT, special(b)),
    'a template with two tokens on a side': createTemplate(special(a), special(b), TEXT),
    'a template of the text only': createTemplate(TEXT),
    'a sequence': { type: 'Sequence', processors: [BYTES, createTemplate(special(a), TEXT)] },
    'a sequence of templates': {
      type: 'Sequence',
      processors: [
        createTemplate(special(a), TEXT, special(b)),
        createTemplate(special(b), TEXT, special(a)),
      ],
    },
    BERT: { type: 'BertProcessing', cls: [a, 0], sep: [b, 1] },
    RoBERTa: { type: 'RobertaProcessing', cls: [a, 0], sep: [b, 1], trim_offsets: true },
  }
  for (const [name, post_processor] of Object.entries(postProcessors)) {
    const tokenizerJson = { ...files.tokenizerJson, post_processor }
    t.test(name, async (t) => checkIds(t, { ...files, tokenizerJson }, ['', 'A lake', `A ${a} lake`]))
  }
})

t.test('a post-processor that is not known adds nothing', async (t) => {
  for (const unknown of [undefined, null, {}, { type: 'Other' }, { type: 'Sequence' }])
    t.same(readTextSpecialTokens(unknown), { before: [], after: [] })
})
