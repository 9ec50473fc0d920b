/** Opens a model for token mode: its tokenizer, its chat template, its output format and its limits. */
import { ProxyError } from '../../../base/errors.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { TokenIds } from '../../../protocol/token-ids/token-ids.ts'
import { type ImageRule, isTextOnly, readImageRule } from '../images/image-rule.ts'
import { PLACEHOLDER_IMAGE } from '../images/placeholder-image.ts'
import { adaptMarkers, chooseParser, findParser, type ParserChoice } from '../parsers/choose-parser.ts'
import type { ParserFamily } from '../parsers/output-parser.ts'
import { PromptRenderer } from '../prompt/prompt-renderer.ts'
import { PromptThread } from '../prompt/prompt-service.ts'
import { PromptSpecializer } from '../prompt/prompt-specializer.ts'
import { ResponseReader } from '../responses/response-reader.ts'
import { type ChatTemplateFiles, getEncoderFiles, readChatTemplate } from '../templates/chat-template.ts'
import { probeEfforts, type TemplateEfforts } from '../templates/probe-efforts.ts'
import {
  choosePromptFormat,
  ENCODER_VARIABLES,
  findEntryPoint,
  HARMONY_VARIABLES,
  type PromptFormat,
  type PromptFormatChoice,
  type PromptRoles,
} from '../templates/prompt-format.ts'
import { ContentCache } from '../tokenizer/content-cache.ts'
import {
  createJavaScriptEncoder,
  openPlainEncoder,
  openRustEncoder,
  type TextEncoder,
  type TokenizerFaultListener,
} from '../tokenizer/encoder.ts'
import { loadFastTokenizer, openFastEncoder } from '../tokenizer/fast-encoder.ts'
import { openTokenizerDirectory, verifyConversion } from '../tokenizer/published-tokenizer.ts'
import { mayCutAtSpaces } from '../tokenizer/safe-cuts.ts'
import { SegmentEncoder } from '../tokenizer/segments.ts'
import {
  computeLongestTokenChars,
  createTokenizer,
  loadTokenizer,
  readAddedTokens,
  type Tokenizer,
} from '../tokenizer/tokenizer.ts'
import { readTokenizerFilesWithoutModel, type TokenizerFiles } from '../tokenizer/tokenizer-files.ts'
import { loadModelFiles, type ModelFiles } from './load-model-files.ts'
import { type ModelCode, type ModelCodeOptions, readModelCode } from './model-code.ts'

/** A model for token mode. */
export interface TokenModel {
  readonly tokenizer: Tokenizer
  readonly renderer: PromptRenderer
  /**
   * The rule for the number of tokens of an image; undefined if the model supports no images, or its rule is unknown.
   */
  readonly imageRule: ImageRule | undefined
  /**
   * Whether images in tool results are part of prompts. If not, because the model is text-only or its template omits
   * them, each such image is replaced by a text.
   */
  readonly seesToolImages: boolean
  readonly parser: ParserFamily
  /** The reason for choosing this parser. */
  readonly parserChoice: ParserChoice
  /** Parses completions in place of `parser`, except those that the engine constrains to another format. */
  readonly responses?: ResponseReader | undefined
  /**
   * The reasoning efforts that the template accepts; undefined if unknown, so that requested efforts are not adapted.
   */
  readonly efforts?: TemplateEfforts | undefined
  /** The roles in which messages are rendered. Default: those of the request. */
  readonly roles?: PromptRoles | undefined
  /** The format of prompts, and the reason for choosing it. */
  readonly promptFormat: PromptFormatChoice
  /** The code of the model's authors that renders the prompts; undefined if there is none. */
  readonly promptEncoder?: Pick<ModelCode, 'file' | 'sha256'> | undefined
  /** The ids that end a completion unless the request sets `ignore_eos`. */
  readonly eosTokenIds: readonly number[]
  /** The maximum number of tokens of prompt and completion together; undefined if unknown. */
  readonly contextLength: number | undefined
  /** The context length that the engines reported at start-up, if the model's files declare none. */
  readonly servedLength?: number | undefined
  /** Returns the length of the longest vocabulary entry, which is computed on first use (50 ms). */
  getLongestTokenChars(): number
  /** One more than the highest token id, according to the model's files. */
  readonly vocabularySize: number
  /**
   * Encodes a text as prompts are encoded, off the event loop if there is a native encoder.
   * @param options `addSpecialTokens`: whether to add the special tokens of a text, such as the begin-of-text token,
   *   which chat templates write themselves; default: no
   * @throws the errors of {@link TextEncoder.encode}
   */
  encodeText(text: string, options?: { addSpecialTokens?: boolean }): Promise<TokenIds>
  /** The encoder in use. The JavaScript one is slower, and its ids differ for some texts. */
  readonly encodedBy: TextEncoder['kind']
  /**
   * Registers a listener that receives the reason why an encoder is no longer used. It is also called for a past fault.
   */
  onTokenizerFault?(listener: TokenizerFaultListener): void
  /** Registers a listener that is called when a specialization differs from the template. */
  onTemplateFault?(listener: () => void): void
  /** See {@link ModelFiles.unlisted}. */
  readonly unlistedFiles?: readonly string[] | undefined
  /** Ends the threads that render prompts, parse completions and tokenize long texts. */
  close(): Promise<void>
}

/** The options with which a model is opened. */
export interface TokenModelOptions extends ModelCodeOptions {
  /** A directory, a tokenizer's file, or a model id of the Hugging Face hub. */
  source: string
  /** The name of a parser family, or `auto`: the family whose format the template shows. */
  parser: string
  /** The prompt format. Default: `auto`, which is harmony for gpt-oss and the chat template for other models. */
  promptFormat?: Exclude<PromptFormat, 'encoder'> | 'auto'
  /** The context length, which overrides that of the model's files. */
  contextLength?: number | undefined
  /** The tokenizer backend. Default: `auto`, the fastest available one that returns the same ids. */
  tokenizerBackend?: TokenizerBackend
}

/** The tokenizer library. `huggingface`: only Hugging Face's own, without fastokens. */
type TokenizerBackend = 'auto' | 'huggingface'

/** A model whose files have been found, and whose template is being compiled on the Python thread. */
export interface StartingModel {
  /**
   * Reads the tokenizer on this thread and waits for Python. It can be called once.
   * @throws ProxyError `config_invalid` for a tokenizer or a template that cannot be used, `start_failed` if Python
   *   does not start
   */
  waitUntilReady(): Promise<TokenModel>
  /** Ends the threads, if the caller's start fails before the model is ready. */
  close(): Promise<void>
}

/**
 * Reads a model's files and compiles its template, which takes about a second of CPU time.
 * @throws ProxyError `config_invalid` for files that are missing or broken, `start_failed` if the hub cannot be reached
 */
export async function openTokenModel(options: TokenModelOptions): Promise<TokenModel> {
  return (await startTokenModel(options)).waitUntilReady()
}

/**
 * Starts opening a model: finds its files and starts Python. The rest, {@link StartingModel.waitUntilReady}, takes
 * about a second on two threads; the caller can do other work on this thread before it.
 * @throws ProxyError `config_invalid` for files that are missing, `start_failed` if the hub cannot be reached
 */
export async function startTokenModel(options: TokenModelOptions): Promise<StartingModel> {
  const modelFiles = await loadModelFiles(options.source)
  const { directory, eosTokenIds: configured } = modelFiles
  const tokenizerDirectory = openTokenizerDirectory(directory)
  const files = readTokenizerFilesWithoutModel(tokenizerDirectory)
  const chatTemplate = readChatTemplate(directory, files.tokenizerConfig)
  const hasTemplate = chatTemplate !== undefined
  const promptEncoder = readModelCode(directory, options.source, { ...options, hasTemplate })
  const template = promptEncoder ? getEncoderFiles(promptEncoder.source) : chatTemplate
  if (template === undefined) {
    throw new ProxyError(
      'config_invalid',
      `${options.source} has no chat template and no prompt encoder; token mode needs one of them to render prompts`,
    )
  }
  const { addedTokens, eosTokenId } = readAddedTokens(files)
  const eosTokenIds = [eosTokenId ?? [], configured].flat()
  const tokens = { ids: addedTokens, eosIds: new Set(eosTokenIds) }
  const promptFormat: PromptFormatChoice = promptEncoder
    ? { name: 'encoder', chosenBy: options.promptEncoder ? 'name' : 'files', evidence: [promptEncoder.file] }
    : choosePromptFormat(options.promptFormat ?? 'auto', template.withTools)
  const prompts = new PromptThread({ template: { ...template, format: promptFormat.name }, tokens })
  const templateWorks = prompts.launch()
  templateWorks.catch(() => {})
  const read: ModelDescription = {
    options,
    modelFiles,
    files,
    template,
    addedTokens,
    eosTokenIds,
    promptFormat,
    promptEncoder,
  }
  const parsers = startParsers(options.parser, template.withTools, files, addedTokens.keys())
  const close = async () => {
    await Promise.all([prompts.close(), parsers.close()])
  }
  const finish = async () => {
    const { tokenizer, encoder } = await openTokenizer(tokenizerDirectory, read)
    if (tokenizerDirectory !== directory) await verifyConversion(tokenizer, encoder)
    await templateWorks
    return createTokenModel(read, tokenizer, encoder, prompts, await parsers.chosen)
  }
  return {
    waitUntilReady: () =>
      finish().catch(async (error: unknown) => {
        await close()
        throw error
      }),
    close,
  }
}

/** The parser of completions and the reason for choosing it. */
interface ParserSetup {
  choice: ParserChoice
  responses: ResponseReader | undefined
}

/**
 * Chooses the parser of completions: the family that `--tool-parser` names, else the model's response template, else
 * the family that its chat template indicates.
 */
function startParsers(
  name: string,
  chatTemplate: string,
  { tokenizerConfig: { response_template: source } }: TokenizerFiles,
  addedTokens: Iterable<string>,
): { chosen: Promise<ParserSetup>; close(): Promise<void> } {
  const byFormat: ParserChoice =
    name === 'auto'
      ? chooseParser(chatTemplate)
      : { family: findParser(name), chosenBy: 'name', evidence: [] }
  const choice = { ...byFormat, family: adaptMarkers(byFormat.family, addedTokens) }
  if (name !== 'auto' || typeof source !== 'object' || source === null) {
    return { chosen: Promise.resolve({ choice, responses: undefined }), close: async () => {} }
  }
  const responses = new ResponseReader(source)
  const works = responses.launch()
  const chosen = works.then(
    () => ({
      choice: { family: choice.family, chosenBy: 'response_template' as const, evidence: [] },
      responses,
    }),
    async (error: unknown) => {
      await responses.close()
      if (!(error instanceof ProxyError) || error.code !== 'config_invalid') throw error
      const reason = `the model's response_template cannot be used: ${error.message}`
      const unread = choice.warning ?? `completions are parsed as ${choice.family.name}`
      return { choice: { ...choice, warning: `${reason}; ${unread}` }, responses: undefined }
    },
  )
  // Prevents an unhandled rejection: the promise is awaited only after the tokenizer has been read.
  chosen.catch(() => {})
  return { chosen, close: () => responses.close() }
}

/** The options of a model and the contents of its files, except the vocabulary. */
interface ModelDescription {
  options: TokenModelOptions
  modelFiles: ModelFiles
  files: TokenizerFiles
  template: ChatTemplateFiles
  addedTokens: ReadonlyMap<string, number>
  eosTokenIds: number[]
  promptFormat: PromptFormatChoice
  promptEncoder: ModelCode | undefined
}

async function createTokenModel(
  read: ModelDescription,
  tokenizer: Tokenizer,
  encoder: TextEncoder,
  prompts: PromptThread,
  { choice: parserChoice, responses }: ParserSetup,
): Promise<TokenModel> {
  const { options, modelFiles, files, addedTokens, eosTokenIds, promptFormat, promptEncoder } = read
  const added = files.tokenizerJson.added_tokens ?? []
  const encode = (text: string, promptChars: number) => encoder.encode(text, promptChars)
  const contentCache = new ContentCache(encode, added, { cutsAtSpaces: mayCutAtSpaces(files.tokenizerJson) })
  encoder.onFault?.(() => contentCache.clear())
  const plain = hasSegments(promptEncoder)
    ? await openPlainEncoder(openTokenizerDirectory(modelFiles.directory))
    : undefined
  const segments =
    plain &&
    new SegmentEncoder(
      { special: (text) => contentCache.encode(text), text: (text) => plain.encode(text) },
      added,
    )
  const specializer = promptFormat.name === 'harmony' ? undefined : new PromptSpecializer(prompts)
  const renderer = new PromptRenderer(specializer ?? prompts, tokenizer, {
    source: getVariablesSource(read),
    eosTokenIds,
    encode: (text: string) => (segments ?? contentCache).encode(text),
    hasSegments: segments !== undefined,
  })
  const { directory } = modelFiles
  const imageRule = readImageRule(directory, addedTokens)
  const seesToolImages = imageRule ? await showsToolImages(renderer, imageRule) : !isTextOnly(directory)
  const efforts = await probeEfforts((kwargs) => prompts.render(SHORT_CHAT, { kwargs }))
  const roles = await prompts.getRoles()
  let longest: number | undefined
  return {
    tokenizer,
    getLongestTokenChars: () => {
      longest ??= computeLongestTokenChars(tokenizer)
      return longest
    },
    renderer,
    imageRule,
    seesToolImages,
    parser: parserChoice.family,
    parserChoice,
    responses,
    efforts,
    roles,
    promptFormat,
    promptEncoder: promptEncoder && { file: promptEncoder.file, sha256: promptEncoder.sha256 },
    eosTokenIds,
    get encodedBy() {
      return encoder.kind
    },
    onTokenizerFault: (listener) => encoder.onFault?.(listener),
    onTemplateFault: (listener) => specializer?.onFault(listener),
    unlistedFiles: modelFiles.unlisted,
    contextLength: options.contextLength ?? modelFiles.contextLength,
    encodeText: async (text, { addSpecialTokens = false } = {}) => {
      const ids = await contentCache.encode(text)
      return addSpecialTokens ? tokenizer.addSpecialTokens(ids) : ids
    },
    // `vocabSize` lists all tokens of the tokenizer, so it is read only if the config declares no size.
    vocabularySize: Math.max(
      modelFiles.vocabularySize ?? tokenizer.vocabSize,
      ...addedTokens.values().map((id) => id + 1),
    ),
    close: async () => {
      await Promise.all([prompts.close(), encoder.close(), plain?.close(), responses?.close()])
    },
  }
}

async function openTokenizer(
  directory: string,
  { files, addedTokens, options }: ModelDescription,
): Promise<{ tokenizer: Tokenizer; encoder: TextEncoder }> {
  // The addon reads `tokenizer.json` on another thread while the library reads it on this one.
  const fast = options.tokenizerBackend === 'huggingface' ? undefined : loadFastTokenizer(directory)
  const rust = await openRustEncoder(directory)
  if (rust === undefined) {
    const tokenizer = loadTokenizer(directory)
    return { tokenizer, encoder: createJavaScriptEncoder(tokenizer) }
  }
  const tokenizer = createTokenizer(rust, files, directory)
  const encoder = fast && (await openFastEncoder(fast, rust, [...addedTokens.keys()]))
  return { tokenizer, encoder: encoder ?? rust }
}

/** Returns whether the model's prompt encoder returns segments. */
function hasSegments(promptEncoder: ModelCode | undefined): boolean {
  return promptEncoder !== undefined && findEntryPoint(promptEncoder.source) === 'build_chat_segments'
}

/** Returns a text that mentions all variables which can change prompts. */
function getVariablesSource({ promptFormat, template }: ModelDescription): string {
  if (promptFormat.name === 'harmony') return HARMONY_VARIABLES
  const source = template.withTools + template.plain
  return promptFormat.name === 'encoder' ? `${ENCODER_VARIABLES} ${source}` : source
}

/** The chat with which reasoning efforts are probed. */
const SHORT_CHAT: readonly ChatMessage[] = [{ role: 'user', content: 'Hello.' }]

const CALL = { id: 'call00001', type: 'function', function: { name: 'read', arguments: '{}' } }

/** A chat with an image in a tool result. */
const TOOL_IMAGE_CHAT = [
  { role: 'user', content: 'Look.' },
  { role: 'assistant', content: '', tool_calls: [CALL] },
  { role: 'tool', tool_call_id: CALL.id, name: 'read', content: [PLACEHOLDER_IMAGE] },
] as unknown as readonly ChatMessage[]

/**
 * Returns whether the template writes a placeholder for an image in a tool result. Some templates of vision models omit
 * such images (Gemma 4's does) or reject them.
 */
async function showsToolImages(renderer: PromptRenderer, { tokenId }: ImageRule): Promise<boolean> {
  try {
    const { ids } = await renderer.renderFull(TOOL_IMAGE_CHAT)
    return ids.includes(tokenId)
  } catch {
    return false
  }
}
