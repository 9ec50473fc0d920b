import type { Logger } from '../../base/logger.ts'
import { VERSION } from '../../base/version.ts'
import { loadEmbeddedTokenizer } from '../../embedded/engine/embedded-model.ts'
import { uiRoutes } from '../../inspector/routes/routes.ts'
import { createTokenTextReader } from '../../proxy/engines/clients/token-text-reader.ts'
import type { ViewOptions } from '../../proxy/http/view.ts'
import { databaseName } from '../../proxy/store/postgres/open.ts'
import { loadModelFiles } from '../../proxy/tokens/model/load-model-files.ts'
import { loadTokenizer } from '../../proxy/tokens/tokenizer/tokenizer.ts'
import { openDatabase } from '../open-database.ts'

interface ViewSource {
  db: string
  /** Where the tokenizer of its models is. */
  tokenizer?: string | undefined
  logger: Logger
}

/** What a view has no use for. */
const NO_BODY_BYTES = 1024

/**
 * Opens a database to be looked at, lends it to `use`, and closes it whatever happens.
 * @throws ProxyError `start_failed` without such a database, `config_invalid` without such a tokenizer
 */
export async function withView<T>(
  { db, tokenizer: name, logger }: ViewSource,
  use: (options: ViewOptions) => Promise<T>,
): Promise<T> {
  const tokenizer = name === undefined ? undefined : loadTokenizer((await loadModelFiles(name)).directory)
  const reader = await openDatabase(db)
  try {
    return await use({
      reader,
      logger,
      inspector: uiRoutes,
      tokenTexts: createTokenTextReader(tokenizer && { name: name!, tokenizer }, loadEmbeddedTokenizer),
      facts: { version: VERSION, db: databaseName(db) },
      bodyLimitBytes: NO_BODY_BYTES,
    })
  } finally {
    await reader.close()
  }
}
