//! Images of a page: PNG and PDF.

use std::time::Duration;

use data_encoding::BASE64;
use serde_json::{Value, json};
use tokio::select;

use super::{PageError, Visit, failure, target};

/// How long an image of the page may take.
const DRAW_MAX: Duration = Duration::from_secs(8);

/// The height of an image, in CSS pixels, and its bytes.
const IMAGE_HEIGHT_MAX: u64 = 16_384;
const IMAGE_BYTES_MAX: usize = 16 << 20;

impl Visit {
    /// Takes a PNG image.
    pub(super) async fn draw(&mut self, read: &Value) -> Result<Option<Vec<u8>>, PageError> {
        let height = read["height"].as_u64().unwrap_or(0).clamp(1, IMAGE_HEIGHT_MAX);
        let clip = json!({ "x": 0, "y": 0, "width": target::WIDTH, "height": height, "scale": 1 });
        let params = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        self.ask_for_file("screenshot", "Page.captureScreenshot", params).await
    }

    /// Prints a PDF file.
    pub(super) async fn print(&mut self) -> Result<Option<Vec<u8>>, PageError> {
        let params = json!({ "printBackground": true });
        self.ask_for_file("pdf", "Page.printToPDF", params).await
    }

    /// A page that cannot be drawn is rendered all the same, with the reason.
    async fn ask_for_file(
        &mut self,
        what: &'static str,
        method: &'static str,
        params: Value,
    ) -> Result<Option<Vec<u8>>, PageError> {
        let reason = match self.ask_running(method, params).await {
            Ok(answer) => {
                let file = BASE64.decode(answer["data"].as_str().unwrap_or_default().as_bytes());
                match file {
                    Ok(file) if file.len() <= IMAGE_BYTES_MAX => return Ok(Some(file)),
                    Ok(file) => format!("{} bytes, more than {IMAGE_BYTES_MAX}", file.len()),
                    Err(error) => format!("the browser: {error}"),
                }
            }
            Err(PageError::Hung(_)) => format!("not made within {} s", DRAW_MAX.as_secs()),
            Err(error @ PageError::Browser(_)) => error.to_string(),
            Err(error) => return Err(error),
        };
        self.image_errors.push(format!("{what}: {reason}"));
        Ok(None)
    }

    /// Asks the page while its clock runs, because what loads for an image needs it.
    async fn ask_running(
        &mut self,
        method: &'static str,
        params: Value,
    ) -> Result<Value, PageError> {
        let connection = self.context.connection.clone();
        let session = self.session.clone();
        let mut call = std::pin::pin!(connection.call(&session, method, params, DRAW_MAX));
        loop {
            select! {
                answer = &mut call => return answer.map_err(|error| failure(&error)),
                paused = self.pace() => paused?,
            }
        }
    }
}
