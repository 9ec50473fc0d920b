/** A model as token mode needs it: its tokenizer, its template tried out, its markup, its limits. */
import { ProxyError } from '../../../base/errors.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import { type ImageRule, isTextOnly, readImageRule } from '../images/image-rule.ts'
import { PLACEHOLDER_IMAGE } from '../images/placeholder-image.ts'
import { chooseParser, findParser, type ParserChoice } from '../parsers/choose-parser.ts'
import type { ParserFamily } from '../parsers/output-parser.ts'
import { PromptRenderer } from '../prompt/prompt-renderer.ts'
import { PromptThread } from '../prompt/prompt-service.ts'
import { ResponseReader } from '../responses/response-reader.ts'
import { type ChatTemplateFiles, readChatTemplate } from '../templates/chat-template.ts'
import { probeEfforts, type TemplateEfforts } from '../templates/probe-efforts.ts'
import {
  choosePromptFormat,
  HARMONY_VARIABLES,
  type PromptFormat,
  type PromptFormatChoice,
} from '../templates/prompt-format.ts'
import { ContentCache } from '../tokenizer/content-cache.ts'
import { javaScriptEncoder, type OnFault, openRustEncoder, type TextEncoder } from '../tokenizer/encoder.ts'
import { loadFastTokenizer, openFastEncoder } from '../tokenizer/fast-encoder.ts'
import { mayCutAtSpaces } from '../tokenizer/safe-cuts.ts'
import {
  loadTokenizer,
  longestTokenChars,
  readAddedTokens,
  type Tokenizer,
  tokenizerNamedBy,
} from '../tokenizer/tokenizer.ts'
import { readTokenizerFilesWithoutModel, type TokenizerFiles } from '../tokenizer/tokenizer-files.ts'
import { loadModelFiles, type ModelFiles } from './load-model-files.ts'

export interface TokenModel {
  readonly tokenizer: Tokenizer
  readonly renderer: PromptRenderer
  /** How many tokens an image has; undefined: the model has none, or its rule is not known. */
  readonly imageRule: ImageRule | undefined
  /** Else one that a tool returns is told to it in words: its files speak of no images, or its template leaves it out. */
  readonly seesToolImages: boolean
  readonly parser: ParserFamily
  /** What speaks for this parser. */
  readonly parserChoice: ParserChoice
  /** Reads answers in the parser's stead, but for those that the engine is held to write otherwise. */
  readonly responses?: ResponseReader | undefined
  /** Which reasoning efforts the template accepts; undefined: not known, and none is adapted. */
  readonly efforts?: TemplateEfforts | undefined
  /** What writes the prompts. */
  readonly promptFormat: PromptFormatChoice
  /** Ids that end a completion unless the request says `ignore_eos`. */
  readonly eosTokenIds: readonly number[]
  /** Tokens of prompt and completion together; undefined where nothing tells. */
  readonly contextLength: number | undefined
  /** What the engines said of it at the start, where the model does not. */
  readonly servedLength?: number | undefined
  /** Of the vocabulary. Found when it is asked for first, which takes 50 ms. */
  longestTokenChars(): number
  /** One more than the highest id that the model can sample, as its files tell. */
  readonly vocabularySize: number
  /** What turns text into ids; the one in JavaScript is slower, and not the same for all text. */
  readonly encodedBy: TextEncoder['kind']
  /** Told why that one is used no more, also where that was before. */
  onTokenizerFault?(listener: OnFault): void
  /** As {@link ModelFiles} has it. */
  readonly unlistedFiles?: readonly string[] | undefined
  /** Ends the threads that prompts are rendered, answers read and long texts tokenized on. */
  close(): Promise<void>
}

export interface TokenModelOptions {
  /** A directory, a `tokenizer.json`, or a model id of the Hugging Face hub. */
  source: string
  /** A family's name, or `auto`: the one that the template teaches the model to write. */
  parser: string
  /** Default: `auto`, harmony's rules for gpt-oss and the template for all others. */
  promptFormat?: PromptFormat | 'auto'
  /** Overrides what the model's files say. */
  contextLength?: number | undefined
  /** Default: `auto`, the fastest that is there and gives the same ids. */
  tokenizerBackend?: TokenizerBackend
}

type TokenizerBackend = 'auto' | 'huggingface'

/** A model whose files were found, and whose template Python gets ready on its thread. */
export interface StartingModel {
  /**
   * Reads the tokenizer, on this thread, and waits for Python; once.
   * @throws ProxyError `config_invalid` for a tokenizer or a template that cannot be used, `start_failed` without Python
   */
  ready(): Promise<TokenModel>
  /** For a start that has failed meanwhile. */
  close(): Promise<void>
}

/**
 * Reads a model's files and tries its template out; takes about a second of processor time.
 * @throws ProxyError `config_invalid` for files that are missing or broken, `start_failed` when the hub is out of reach
 */
export async function openTokenModel(options: TokenModelOptions): Promise<TokenModel> {
  return (await startTokenModel(options)).ready()
}

/**
 * The first part of {@link openTokenModel}, after which there is a second's work left that has two threads. Whoever has
 * something else to do on this one does it before the second part.
 * @throws ProxyError `config_invalid` for files that are missing, `start_failed` when the hub is out of reach
 */
export async function startTokenModel(options: TokenModelOptions): Promise<StartingModel> {
  const modelFiles = await loadModelFiles(options.source)
  const { directory, eosTokenIds: configured } = modelFiles
  const files = readTokenizerFilesWithoutModel(directory)
  const template = readChatTemplate(directory, files.tokenizerConfig)
  if (template === undefined) {
    throw new ProxyError(
      'config_invalid',
      `${options.source} has no chat template, which token mode renders prompts with`,
    )
  }
  const { addedTokens, eosTokenId } = readAddedTokens(files)
  const eosTokenIds = [eosTokenId ?? [], configured].flat()
  const tokens = { ids: addedTokens, eosIds: new Set(eosTokenIds) }
  const promptFormat = choosePromptFormat(options.promptFormat ?? 'auto', template.withTools)
  const prompts = new PromptThread({ template: { ...template, format: promptFormat.name }, tokens })
  const templateWorks = prompts.begin()
  templateWorks.catch(() => {})
  const read: ModelDescription = {
    options,
    modelFiles,
    files,
    template,
    addedTokens,
    eosTokenIds,
    promptFormat,
  }
  const parsers = startParsers(options.parser, template.withTools, files)
  const close = async () => {
    await Promise.all([prompts.close(), parsers.close()])
  }
  const ready = async () => {
    const { tokenizer, encoder } = await openTokenizer(directory, read)
    await templateWorks
    return createTokenModel(read, tokenizer, encoder, prompts, await parsers.chosen)
  }
  return {
    ready: () =>
      ready().catch(async (error: unknown) => {
        await close()
        throw error
      }),
    close,
  }
}

interface ParserSetup {
  choice: ParserChoice
  responses: ResponseReader | undefined
}

/** What reads answers: what `--tool-parser` names, else the model's response template, else what its chat template shows. */
function startParsers(
  name: string,
  chatTemplate: string,
  { tokenizerConfig: { response_template: source } }: TokenizerFiles,
): { chosen: Promise<ParserSetup>; close(): Promise<void> } {
  const choice: ParserChoice =
    name === 'auto'
      ? chooseParser(chatTemplate)
      : { family: findParser(name), chosenBy: 'name', evidence: [] }
  if (name !== 'auto' || typeof source !== 'object' || source === null) {
    return { chosen: Promise.resolve({ choice, responses: undefined }), close: async () => {} }
  }
  const responses = new ResponseReader(source)
  const works = responses.begin()
  const chosen = works.then(
    () => ({
      choice: { family: choice.family, chosenBy: 'response_template' as const, evidence: [] },
      responses,
    }),
    async (error: unknown) => {
      await responses.close()
      if (!(error instanceof ProxyError) || error.code !== 'config_invalid') throw error
      const why = `the model's response_template cannot be used: ${error.message}`
      const unread = choice.warning ?? `answers are read as ${choice.family.name}`
      return { choice: { ...choice, warning: `${why}; ${unread}` }, responses: undefined }
    },
  )
  // It is awaited when the tokenizer is read.
  chosen.catch(() => {})
  return { chosen, close: () => responses.close() }
}

/** What a model's files say, but for the vocabulary. */
interface ModelDescription {
  options: TokenModelOptions
  modelFiles: ModelFiles
  files: TokenizerFiles
  template: ChatTemplateFiles
  addedTokens: ReadonlyMap<string, number>
  eosTokenIds: number[]
  promptFormat: PromptFormatChoice
}

async function createTokenModel(
  read: ModelDescription,
  tokenizer: Tokenizer,
  encoder: TextEncoder,
  prompts: PromptThread,
  { choice: parserChoice, responses }: ParserSetup,
): Promise<TokenModel> {
  const { options, modelFiles, files, template, addedTokens, eosTokenIds, promptFormat } = read
  const added = files.tokenizerJson.added_tokens ?? []
  const encode = (text: string, promptChars: number) => encoder.encode(text, promptChars)
  const memory = new ContentCache(encode, added, { cutsAtSpaces: mayCutAtSpaces(files.tokenizerJson) })
  encoder.onFault?.(() => memory.clear())
  const renderer = new PromptRenderer(prompts, tokenizer, {
    source: promptFormat.name === 'harmony' ? HARMONY_VARIABLES : template.withTools + template.plain,
    eosTokenIds,
    encode: (text: string) => memory.encode(text),
  })
  const { directory } = modelFiles
  const imageRule = readImageRule(directory, addedTokens)
  const seesToolImages = imageRule ? await showsToolImages(renderer, imageRule) : !isTextOnly(directory)
  const efforts = await probeEfforts((kwargs) => prompts.render(SHORT_CHAT, { kwargs }))
  let longest: number | undefined
  return {
    tokenizer,
    longestTokenChars: () => {
      longest ??= longestTokenChars(tokenizer)
      return longest
    },
    renderer,
    imageRule,
    seesToolImages,
    parser: parserChoice.family,
    parserChoice,
    responses,
    efforts,
    promptFormat,
    eosTokenIds,
    get encodedBy() {
      return encoder.kind
    },
    onTokenizerFault: (listener) => encoder.onFault?.(listener),
    unlistedFiles: modelFiles.unlisted,
    contextLength: options.contextLength ?? modelFiles.contextLength,
    // The tokenizer's own takes a list of all its tokens, so that it is not asked where a config tells.
    vocabularySize: Math.max(
      modelFiles.vocabularySize ?? tokenizer.vocabSize,
      ...addedTokens.values().map((id) => id + 1),
    ),
    close: async () => {
      await Promise.all([prompts.close(), encoder.close(), responses?.close()])
    },
  }
}

async function openTokenizer(
  directory: string,
  { files, addedTokens, options }: ModelDescription,
): Promise<{ tokenizer: Tokenizer; encoder: TextEncoder }> {
  // Beside the library, which is read on this thread.
  const fast = options.tokenizerBackend === 'huggingface' ? undefined : loadFastTokenizer(directory)
  const rust = await openRustEncoder(directory)
  if (rust === undefined) {
    const tokenizer = loadTokenizer(directory)
    return { tokenizer, encoder: javaScriptEncoder(tokenizer) }
  }
  const tokenizer = tokenizerNamedBy(rust, files, directory)
  const encoder = fast && (await openFastEncoder(fast, rust, [...addedTokens.keys()]))
  return { tokenizer, encoder: encoder ?? rust }
}

const SHORT_CHAT: readonly ChatMessage[] = [{ role: 'user', content: 'Hello.' }]

const CALL = { id: 'call00001', type: 'function', function: { name: 'read', arguments: '{}' } }

const SHOWN = [
  { role: 'user', content: 'Look.' },
  { role: 'assistant', content: '', tool_calls: [CALL] },
  { role: 'tool', tool_call_id: CALL.id, name: 'read', content: [PLACEHOLDER_IMAGE] },
] as unknown as readonly ChatMessage[]

/**
 * Whether a model sees the images that tools return: templates of models with eyes may leave them out (Gemma 4's).
 * @returns whether the template writes the placeholder for an image in a tool's result; false where it refuses one
 */
async function showsToolImages(renderer: PromptRenderer, { tokenId }: ImageRule): Promise<boolean> {
  try {
    const { ids } = await renderer.renderFull(SHOWN)
    return ids.includes(tokenId)
  } catch {
    return false
  }
}
