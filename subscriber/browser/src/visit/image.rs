//! Images of a page: PNG and PDF.

use std::time::Duration;

use data_encoding::BASE64;
use serde_json::{Value, json};

use super::{PageError, Visit, target};

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
        self.ask_for_file("Page.captureScreenshot", params).await
    }

    /// Prints a PDF file.
    pub(super) async fn print(&mut self) -> Result<Option<Vec<u8>>, PageError> {
        self.ask_for_file("Page.printToPDF", json!({ "printBackground": true })).await
    }

    /// A page that cannot be drawn is rendered all the same.
    async fn ask_for_file(
        &mut self,
        method: &'static str,
        params: Value,
    ) -> Result<Option<Vec<u8>>, PageError> {
        match self.ask(method, params, DRAW_MAX).await {
            Ok(answer) => {
                let file = BASE64.decode(answer["data"].as_str().unwrap_or_default().as_bytes());
                Ok(file.ok().filter(|file| file.len() <= IMAGE_BYTES_MAX))
            }
            Err(PageError::Hung(_) | PageError::Browser(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
