/** Chat templates in this process: one Python interpreter for a complete test file. */

import { PromptEngine } from '../../src/proxy/tokens/prompt/prompt-engine.ts'
import { PromptRenderer, type PromptRendererOptions } from '../../src/proxy/tokens/prompt/prompt-renderer.ts'
import type { PromptService } from '../../src/proxy/tokens/prompt/prompt-service.ts'
import { PromptSpecializer, type TemplateService } from '../../src/proxy/tokens/prompt/prompt-specializer.ts'
import {
  ChatTemplate,
  type ChatTemplateSource,
  getChatTemplateFiles,
  readChatTemplate,
} from '../../src/proxy/tokens/templates/chat-template.ts'
import type { PromptFormat } from '../../src/proxy/tokens/templates/prompt-format.ts'
import { PythonTemplates } from '../../src/proxy/tokens/templates/python/python-templates.ts'
import type { Tokenizer } from '../../src/proxy/tokens/tokenizer/tokenizer.ts'
import { readTokenizerFiles, type TokenizerConfig } from '../../src/proxy/tokens/tokenizer/tokenizer-files.ts'

const python = await PythonTemplates.start()

export function createTemplate(
  source: ChatTemplateSource,
  config?: TokenizerConfig,
  format?: PromptFormat,
): ChatTemplate {
  return new ChatTemplate(python, { ...getChatTemplateFiles(source, config), format })
}

/** Loads a model's template and its source. */
export function loadTemplate(directory: string): { template: ChatTemplate; source: string } {
  const files = readChatTemplate(directory, readTokenizerFiles(directory).tokenizerConfig)!
  return { template: new ChatTemplate(python, files), source: files.withTools }
}

/** Creates the prompt service of the proxy without its thread. */
export function createService(
  template: ChatTemplate,
  tokenizer: Tokenizer,
  eosTokenIds: readonly number[] = [],
): PromptService {
  return new PromptSpecializer(toTemplateService(createEngine(template, tokenizer, eosTokenIds)))
}

function createEngine(
  template: ChatTemplate,
  tokenizer: Tokenizer,
  eosTokenIds: readonly number[] = [],
): PromptEngine {
  const eosIds = new Set([tokenizer.eosTokenId!, ...eosTokenIds])
  return new PromptEngine(template, { ids: tokenizer.addedTokens, eosIds })
}

/** Returns the service of the proxy's prompt thread for an engine in this thread. */
export function toTemplateService(engine: PromptEngine): TemplateService {
  return {
    getWords: async () => engine.words,
    getBeginnings: async (options) => engine.getBeginnings(options),
    render: async (messages, options) => engine.render(messages, options),
    renderNewPart: async (request, options) => engine.renderNewPart(request, options),
    specialize: async (messages, options, paths) => engine.specialize(messages, options, paths),
    specializePart: async (request, options) => engine.specializePart(request, options),
  }
}

export function createRenderer(
  template: ChatTemplate,
  tokenizer: Tokenizer,
  options: PromptRendererOptions,
): PromptRenderer {
  return new PromptRenderer(createService(template, tokenizer, options.eosTokenIds), tokenizer, options)
}

/** Creates a renderer that does not specialize the template, which then renders each prompt itself. */
export function createUnspecializedRenderer(
  template: ChatTemplate,
  tokenizer: Tokenizer,
  options: PromptRendererOptions,
): PromptRenderer {
  const engine = createEngine(template, tokenizer, options.eosTokenIds)
  return new PromptRenderer(toTemplateService(engine), tokenizer, options)
}
