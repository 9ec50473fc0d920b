import { type ConnectionOptions, EngineConnection } from './connection.ts'

/** What the client of any server begins and ends with: its connection. */
export abstract class ServerClient {
  protected readonly connection: EngineConnection

  constructor(options: ConnectionOptions) {
    this.connection = new EngineConnection(options)
  }

  get name(): string {
    return this.connection.name
  }

  endSession(sessionId: string): void {
    this.connection.endSession(sessionId)
  }

  async close(): Promise<void> {
    await this.connection.close()
  }
}
