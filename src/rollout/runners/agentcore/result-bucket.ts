import type { S3Client } from '@aws-sdk/client-s3'
import { ProxyError } from '../../../base/errors.ts'
import { importOptionalPackage } from '../../../base/optional-package.ts'

/** The S3 bucket of results. */
export class ResultBucket {
  readonly name: string
  readonly #region: string
  #opened: Promise<{ sdk: typeof import('@aws-sdk/client-s3'); client: S3Client }> | undefined

  constructor(name: string, region: string) {
    this.name = name
    this.#region = region
  }

  /**
   * Checks access by reading a missing object.
   * @throws ProxyError `config_invalid` when S3 does not report it as missing
   */
  async prepare(experiment: string, signal: AbortSignal): Promise<void> {
    try {
      await this.get(`${experiment}/none`, signal)
    } catch (cause) {
      signal.throwIfAborted()
      const needed = 's3:GetObject on its objects and s3:ListBucket on the bucket are needed'
      throw new ProxyError('config_invalid', `results in ${this.name} cannot be read; ${needed}`, { cause })
    }
  }

  /**
   * Reads an object.
   * @returns undefined if it does not exist
   * @throws Error of the SDK after its retries; `signal.reason`
   */
  async get(key: string, signal: AbortSignal): Promise<string | undefined> {
    const { sdk, client } = await this.#open()
    try {
      const command = new sdk.GetObjectCommand({ Bucket: this.name, Key: key })
      const { Body } = await client.send(command, { abortSignal: signal })
      return await Body!.transformToString()
    } catch (error) {
      signal.throwIfAborted()
      // A missing bucket has another error and is fatal.
      if ((error as Error).name === 'NoSuchKey') return undefined
      throw error
    }
  }

  async close(): Promise<void> {
    const opened = await this.#opened?.catch(() => undefined)
    opened?.client.destroy()
  }

  #open() {
    const { AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL } = process.env
    this.#opened ??= importOptionalPackage(
      '@aws-sdk/client-s3',
      'A bucket of results',
      () => import('@aws-sdk/client-s3'),
    ).then((sdk) => ({
      sdk,
      client: new sdk.S3Client({
        region: this.#region,
        followRegionRedirects: true,
        // More than the SDK's default, because a result may have taken hours to compute.
        maxAttempts: 10,
        // A self-hosted server has no host name for each bucket.
        forcePathStyle: (AWS_ENDPOINT_URL_S3 ?? AWS_ENDPOINT_URL) !== undefined,
      }),
    }))
    return this.#opened
  }
}
