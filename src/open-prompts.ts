/** Opens the model and the prompts of token mode, and reports them; without a model, the prompts of chat mode. */
import { ProxyError } from './base/errors.ts'
import { logEvent } from './base/log-events.ts'
import type { Logger } from './base/logger.ts'
import { REASONING_EFFORTS } from './protocol/canonical/reasoning-effort.ts'
import type { ServeConfig } from './proxy/config/options/serve.ts'
import type { Backend } from './proxy/engines/port/backend.ts'
import {
  COMPARED_CHATS,
  type ExpectedTokenizer,
  TOKENIZER_TEXT,
} from './proxy/engines/port/expected-tokenizer.ts'
import { ChatPrompts } from './proxy/session/prompts/chat-prompts.ts'
import { wholePrompt } from './proxy/session/prompts/prompt-planner.ts'
import type { Prompts } from './proxy/session/prompts/prompts.ts'
import { TokenPrompts } from './proxy/session/prompts/token-prompts.ts'
import type { TurnStore } from './proxy/store/port/turn-store.ts'
import { openTokenModel, type TokenModel } from './proxy/tokens/model/token-model.ts'
import type { ParserChoice } from './proxy/tokens/parsers/choose-parser.ts'
import type { TemplateEfforts } from './proxy/tokens/templates/probe-efforts.ts'
import type { PromptFormatChoice } from './proxy/tokens/templates/prompt-format.ts'
import type { Tokenizer } from './proxy/tokens/tokenizer/tokenizer.ts'
import { getModelOptions } from './start-model.ts'

interface ModelOpening {
  opened: AsyncDisposableStack
  logger: Logger
  openModel: typeof openTokenModel | undefined
}

/** Opens the configured model. @returns undefined in chat mode */
export async function openConfiguredModel(
  config: ServeConfig,
  { opened, logger, openModel = openTokenModel }: ModelOpening,
): Promise<TokenModel | undefined> {
  const options = getModelOptions(config)
  if (options === undefined) return undefined
  const model = await openModel(options)
  opened.defer(() => model.close())
  model.onTokenizerFault?.((fault) =>
    logEvent(logger, 'fast_tokenizer_disabled', {
      reason: fault.why,
      text_sha256: fault.textSha256,
      chars: fault.chars,
      err: fault.error,
    }),
  )
  if (model.encodedBy === 'javascript') logEvent(logger, 'fast_tokenizer_missing', {})
  if (model.unlistedFiles !== undefined)
    logEvent(logger, 'model_files_missing', { files: model.unlistedFiles })
  return model
}

export async function openPrompts(
  model: TokenModel | undefined,
  backend: Backend,
  store: TurnStore,
  logger: Logger,
): Promise<{ prompts: Prompts; tokenizer?: Tokenizer; markup?: MarkupFacts }> {
  if (model === undefined) {
    return { prompts: new ChatPrompts((...asked) => backend.countTokens(...asked), store) }
  }
  const { members } = backend.status()
  if (members.length > 0 && !members.some((member) => member.takesTokenIds)) {
    throw new ProxyError(
      'start_failed',
      `token mode needs an engine that takes token ids, and ${members.map(({ name }) => name).join(', ')} does not: ` +
        'leave out --tokenizer, or use vLLM or SGLang',
    )
  }
  if (members.length > 0 && members.every((member) => member.tokenizer === 'other')) {
    const refused = members.map(({ name, error }) => `${name}: ${error}`).join('; ')
    throw new ProxyError('config_invalid', `${refused}; give --tokenizer the engine's own model`)
  }
  const reading = tellToolParser(model.parserChoice, logger)
  const writing = tellPromptFormat(model.promptFormat, logger)
  const servedLength = await findServedLength(model.contextLength, backend, logger)
  const markup = {
    tool_parser: reading,
    prompt_format: writing,
    reasoning_efforts: reportEfforts(model.efforts, logger),
    context_length: model.contextLength,
  }
  return { prompts: new TokenPrompts({ ...model, servedLength }, store), tokenizer: model.tokenizer, markup }
}

/**
 * Returns the longest context that an engine serves: servers often have less memory than the length in config.json
 * needs (`--max-model-len` of vLLM).
 * @param length the model's length; undefined: its files do not state it
 * @returns undefined if no engine reports its length
 */
async function findServedLength(
  length: number | undefined,
  backend: Backend,
  logger: Logger,
): Promise<number | undefined> {
  const served = (await backend.models()).flatMap(({ maxModelLen }) => maxModelLen ?? [])
  const least = Math.min(...served)
  const most = served.length === 0 ? undefined : Math.max(...served)
  if (length === undefined || least >= length) return most
  logEvent(logger, 'context_length_limited', { served_length: least, model_length: length })
  return most
}

/** The format of prompts and the parser of completions, for `/health`. */
export interface MarkupFacts {
  tool_parser: ToolParserFacts
  prompt_format: PromptFormatFacts
  /** undefined: the template rejects a plain chat, so its efforts are unknown. */
  reasoning_efforts: EffortFacts | undefined
  /** Number of tokens of prompt and completion together; undefined: the model's files do not state it. */
  context_length: number | undefined
}

interface EffortFacts {
  accepted: readonly string[]
  /** Whether the effort changes the prompt. */
  read: boolean
}

function reportEfforts(efforts: TemplateEfforts | undefined, logger: Logger): EffortFacts | undefined {
  if (efforts === undefined) return undefined
  const accepted = REASONING_EFFORTS.filter((effort) => !efforts.rejected.has(effort))
  const facts = { accepted, read: efforts.isRead }
  logEvent(logger, 'efforts_probed', { reasoning_efforts: facts })
  return facts
}

interface PromptFormatFacts {
  name: string
  chosen_by: 'name' | 'template'
  evidence: readonly string[]
}

function tellPromptFormat(
  { name, chosenBy, evidence }: PromptFormatChoice,
  logger: Logger,
): PromptFormatFacts {
  const facts = { name, chosen_by: chosenBy, evidence }
  logEvent(logger, 'prompt_format_chosen', { prompt_format: facts })
  return facts
}

interface ToolParserFacts {
  name: string
  chosen_by: ParserChoice['chosenBy']
  /** Texts of the chat template that support the choice. */
  evidence: readonly string[]
  warning?: string | undefined
}

function tellToolParser(choice: ParserChoice, logger: Logger): ToolParserFacts {
  const { family, chosenBy, evidence, warning } = choice
  const name = chosenBy === 'response_template' ? chosenBy : family.name
  const facts = { name, chosen_by: chosenBy, evidence, warning: warning || undefined }
  if (warning === undefined) logEvent(logger, 'tool_parser_chosen', { tool_parser: facts })
  else logEvent(logger, 'tool_parser_uncertain', { tool_parser: facts, warning })
  return facts
}

export async function expectedTokenizer(
  { tokenizer }: ServeConfig,
  model: TokenModel,
): Promise<ExpectedTokenizer> {
  const { tokenizer: own } = model
  const decode = (ids: readonly number[]) => own.decode(ids)
  const chatIds = await comparedPrompts(model)
  return { name: tokenizer!, ids: own.encode(TOKENIZER_TEXT), chatIds, decode }
}

/**
 * Renders the prompts for comparison with engines. A template may reject tools, or such a chat; that one is not
 * compared.
 */
async function comparedPrompts(model: TokenModel): Promise<ExpectedTokenizer['chatIds']> {
  const prompts = await Promise.all(
    Object.entries(COMPARED_CHATS).map(async ([name, chat]) => {
      const prompt = await wholePrompt(model, chat).catch(() => undefined)
      return prompt && [name, [...prompt.ids]]
    }),
  )
  return Object.fromEntries(prompts.filter((prompt) => prompt !== undefined))
}
