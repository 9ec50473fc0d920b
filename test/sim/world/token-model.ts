/**
 * The model of token mode, in the process of the simulator: the tokenizer and the chat template of the embedded engine,
 * with the product's Python renderer. Replies are delayed; their recipient may have died meanwhile.
 */
import { getEmbeddedModelFolder } from '../../../src/embedded/engine/embedded-model.ts'
import type { TokenModel } from '../../../src/proxy/tokens/model/token-model.ts'
import { chooseParser } from '../../../src/proxy/tokens/parsers/choose-parser.ts'
import { PromptEngine } from '../../../src/proxy/tokens/prompt/prompt-engine.ts'
import { PromptRenderer } from '../../../src/proxy/tokens/prompt/prompt-renderer.ts'
import type { PromptService } from '../../../src/proxy/tokens/prompt/prompt-service.ts'
import { ChatTemplate, readChatTemplate } from '../../../src/proxy/tokens/templates/chat-template.ts'
import { PythonTemplates } from '../../../src/proxy/tokens/templates/python/python-templates.ts'
import { ContentCache } from '../../../src/proxy/tokens/tokenizer/content-cache.ts'
import { loadTokenizer, readAddedTokens } from '../../../src/proxy/tokens/tokenizer/tokenizer.ts'
import { readTokenizerFiles } from '../../../src/proxy/tokens/tokenizer/tokenizer-files.ts'
import type { Vocabulary } from '../actors/oracle.ts'
import { sleep } from './world.ts'

export interface SimModel {
  /** Opens the model as `openTokenModel` does: each proxy has separate caches. */
  open(): Promise<TokenModel>
  /** The vocabulary of engines that receive ids. */
  vocabulary: Vocabulary
  decode(ids: readonly number[]): string
}

const RENDER_MS = 2
const ENCODE_MS = 0.5

let opening: Promise<SimModel> | undefined

/**
 * Returns the model for all runs of this process. Python starts in real time, so call this before a world's virtual
 * time is installed.
 */
export function getSimModel(): Promise<SimModel> {
  opening ??= openSimModel()
  return opening
}

async function openSimModel(): Promise<SimModel> {
  const folder = getEmbeddedModelFolder()
  const files = readTokenizerFiles(folder)
  const tokenizer = loadTokenizer(files)
  const template = readChatTemplate(folder, files.tokenizerConfig)!
  const { addedTokens, eosTokenId } = readAddedTokens(files)
  const endOfTurn = eosTokenId!
  const python = await PythonTemplates.start()
  const chatTemplate = new ChatTemplate(python, template)
  const tokens = { ids: addedTokens, eosIds: new Set([endOfTurn]) }
  const words = Object.entries(files.tokenizerJson.model!.vocab as Record<string, number>)
    .filter(([chunk]) => /^Ġ?[a-z]+$/.test(chunk))
    .map(([, id]) => id)
  const parserChoice = chooseParser(template.withTools)
  const encode = (text: string) => tokenizer.encode(text)
  return {
    decode: (ids) => tokenizer.decode(ids),
    vocabulary: {
      endOfTurn,
      word: (number) => words[number % words.length]!,
      getText: (id) => (id === endOfTurn ? '' : tokenizer.decode([id])),
      encode,
    },
    open: async () => {
      const cache = new ContentCache(async (text) => {
        await sleep(ENCODE_MS)
        return encode(text)
      }, files.tokenizerJson.added_tokens ?? [])
      const service = createService(new PromptEngine(chatTemplate, tokens))
      const source = template.withTools + template.plain
      const eosTokenIds = [endOfTurn]
      const renderer = new PromptRenderer(service, tokenizer, {
        source,
        eosTokenIds,
        encode: async (text) => Array.from(await cache.encode(text)),
      })
      return {
        tokenizer,
        renderer,
        parser: parserChoice.family,
        parserChoice,
        promptFormat: { name: 'template', chosenBy: 'template', evidence: [] },
        eosTokenIds,
        contextLength: 100_000,
        getLongestTokenChars: () => 128,
        imageRule: undefined,
        seesToolImages: false,
        vocabularySize: tokenizer.vocabSize,
        encodedBy: 'rust',
        encodeText: (text) => cache.encode(text),
        close: async () => {},
      }
    },
  }
}

function createService(engine: PromptEngine): PromptService {
  const delay = async <T>(respond: () => T): Promise<T> => {
    await sleep(RENDER_MS)
    return respond()
  }
  return {
    getWords: () => delay(() => engine.words),
    getBeginnings: (options) => delay(() => engine.getBeginnings(options)),
    render: (messages, options) => delay(() => engine.render(messages, options)),
    renderNewPart: (request, options) => delay(() => engine.renderNewPart(request, options)),
  }
}
